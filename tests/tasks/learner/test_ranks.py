"""Two gloo ranks, in processes of their own, against one."""

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
import torch.distributed as dist

from nbrl.tasks.errors import UpdateError
from nbrl.tasks.layout.checkpoints import TOKEN_LOGPROBS
from nbrl.tasks.learner.learner import Learner
from nbrl.tasks.learner.settings import UpdateSettings
from tests.tasks.learner import update_lab

NEAR = 1e-7  # models compute norms in float32: where a cut repeats a trunk, sums differ in the ninth digit


def settings(workers: int) -> UpdateSettings:
    return UpdateSettings(workers=workers, dtype="float64", lr=0.1, eps=1.0, kl_coefficient=0.1)


def learn(policy: Path, workers: int, folder: Path, restart_at: int | None = None) -> list[dict[str, Any]]:
    """Execute three orders in a row, with a new learner from `restart_at` on; what tells their results apart."""
    learner, results, before = Learner(settings(workers), update_lab.places(policy), torch.device("cpu")), [], None
    for number in range(3):
        if number == restart_at:
            learner = Learner(settings(workers), update_lab.places(policy), torch.device("cpu"))
        order = update_lab.write_order(
            folder / f"rank{dist.get_rank()}-{number}",
            update_lab.make_trajectories(number, 7),
            str(folder / f"out{number}"),
            iteration=number,
            checkpoint_in=before,
        )
        result = learner.execute(order)
        before = result.checkpoint
        weights = update_lab.weights(before)
        tokens = pq.read_table(update_lab.place(before) / TOKEN_LOGPROBS)
        results.append({"metrics": result.metrics, "proof": update_lab.proved(result), "weights": weights, "tokens": tokens})
    with pytest.raises(UpdateError, match="proc"):
        learner.execute(order.model_copy(update={"checkpoint_out": "proc/nowhere/out"}))
    return results


def on_two(policy: Path, folder: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Undisturbed, and with a restart."""
    return learn(policy, 2, folder / "two"), learn(policy, 2, folder / "again", restart_at=1)


@pytest.mark.more
@pytest.mark.process
@pytest.mark.usefixtures("alone")
def test_ranks_give_the_gradient_of_one_and_resume_bitwise(policy64: Path, tmp_path: Path) -> None:
    one = learn(policy64, 1, tmp_path / "one")
    two, again = update_lab.on_ranks(2, on_two, policy64, tmp_path)
    for single, double, resumed in zip(one, two, again, strict=True):
        for key in ("update/loss", "update/kl", "update/grad_norm", "mismatch/logprob_max_abs", "update/sampled_tokens"):
            assert double["metrics"][key] == pytest.approx(single["metrics"][key], rel=NEAR, abs=1e-12)
        torch.testing.assert_close(double["weights"], single["weights"], rtol=NEAR, atol=NEAR)
        torch.testing.assert_close(double["proof"], single["proof"], rtol=NEAR, atol=NEAR)
        assert double["tokens"].drop("logprobs") == single["tokens"].drop("logprobs")
        for of_one, of_two in zip(
            single["tokens"]["logprobs"].to_pylist(), double["tokens"]["logprobs"].to_pylist(), strict=True
        ):
            assert of_two == pytest.approx(of_one, abs=1e-5)
        assert resumed["tokens"] == double["tokens"]
        assert resumed["proof"] == double["proof"]
        assert all(torch.equal(resumed["weights"][name], double["weights"][name]) for name in double["weights"])
