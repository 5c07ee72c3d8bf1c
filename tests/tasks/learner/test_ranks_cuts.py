"""Three gloo ranks with trajectories cut between them, against one rank that forwards the batch whole."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

from nbrl.tasks.learner.learner import Learner
from nbrl.tasks.learner.settings import GspoLoss, UpdateSettings
from tests.tasks.learner import update_lab


def learn(policy: Path, workers: int, budget: int, folder: Path) -> tuple[dict[str, float], dict[str, Any]]:
    """The metrics and the weights of one order, whose loss and weight of a token need whole actions."""
    settings = UpdateSettings(
        workers=workers,
        dtype="float64",
        lr=0.1,
        eps=1.0,
        kl_coefficient=0.1,
        loss=GspoLoss(kind="gspo", old="engine", clip_low=0.9, clip_high=9.0),
        aggregation="action_mean",
        tokens_per_micro_batch=budget,
    )
    trajectories = update_lab.make_trajectories(3, 4)
    for each in trajectories:
        each.nodes[:2] = trajectories[0].nodes[:2]
    order = update_lab.write_order(folder / f"rank{dist.get_rank()}", trajectories, str(folder / "out"))
    result = Learner(settings, update_lab.places(policy), torch.device("cpu")).execute(order)
    return result.metrics, load_file(update_lab.place(result) / "hf/model.safetensors")


@pytest.mark.more
@pytest.mark.process
@pytest.mark.usefixtures("alone")
def test_cuts_between_ranks_change_nothing(policy64: Path, tmp_path: Path) -> None:
    whole, expected = learn(policy64, 1, 10_000, tmp_path / "one")
    cut, found = update_lab.on_ranks(3, learn, policy64, 3, 60, tmp_path / "three")
    assert whole["update/micro_batches"] == 1
    assert cut["update/micro_batches"] > 1
    assert cut["update/forwarded_tokens"] > whole["update/forwarded_tokens"] == whole["update/unique_tokens"]
    assert cut["update/sampled_tokens"] == whole["update/sampled_tokens"]
    assert whole["update/imbalance"] == 1
    assert 1 <= cut["update/imbalance"] < 1.5
    for name in ("update/loss", "update/grad_norm", "update/ratio", "mismatch/logprob_max_abs"):
        assert cut[name] == pytest.approx(whole[name], rel=1e-6), name
    before = load_file(policy64 / "model.safetensors")
    for name, weight in expected.items():
        step = weight - before[name]
        assert torch.linalg.norm(found[name] - weight) <= 1e-6 * torch.linalg.norm(step), name
