"""The same batch gives the same steps whatever the number of ranks and the size of a micro-batch, with every part of the loss."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

from nbrl.tasks.advantage.settings import AdvantageSettings
from nbrl.tasks.learner.learner import Learner
from nbrl.tasks.learner.settings import UpdateSettings
from tests.tasks.learner import update_lab

PPO = {"kind": "ppo"}
MANY: dict[str, tuple[dict[str, Any], AdvantageSettings | None]] = {
    "action mean, gspo, masked actions": (
        {
            "loss": {"kind": "gspo"},
            "minibatches": 2,
            "aggregation": "action_mean",
            "tis": {"kind": "mask_actions", "high": 1.2},
            "kl_estimator": "k2",
        },
        None,
    ),
    "trajectory mean, ppo, bi-level critic, KL in the reward": (
        {
            "loss": PPO,
            "epochs": 2,
            "aggregation": "trajectory_mean",
            "kl_in": "reward",
            "critic": {"lr": 0.1, "value_clip": 0.1},
        },
        AdvantageSettings(estimator="bilevel_gae"),
    ),
    "masked trajectories": ({"tis": {"kind": "mask_trajectories", "high": 1.05}}, None),
    "fixed length, truncated": (
        {"aggregation": "fixed_length", "fixed_length": 30, "tis": {"kind": "truncate", "high": 1.1}},
        AdvantageSettings(),
    ),
}
DTYPES = {"float32": torch.float32, "float64": torch.float64}
FIGURES = (
    "update/loss",
    "update/kl",
    "update/grad_norm",
    "critic/loss",
    "critic/explained_variance",
    "update/clipped_share",
    "mismatch/ess_share",
)


def learn(policy: Path, workers: int, folder: Path, budget: int, dtype: str) -> dict[str, list[tuple[dict[str, float], Any]]]:
    """Two orders in a row for each settings: figures and weights."""
    results: dict[str, list[tuple[dict[str, float], Any]]] = {}
    for name, (fields, estimate) in MANY.items():
        exact = {"workers": workers, "dtype": dtype, "lr": 0.1, "eps": 1.0, "kl_coefficient": 0.1}
        settings = UpdateSettings.model_validate(exact | {"tokens_per_micro_batch": budget} | fields)
        learner, before = Learner(settings, update_lab.places(policy), torch.device("cpu")), None
        results[name] = []
        for number in range(2):
            trajectories = update_lab.sample_as(policy, update_lab.make_trajectories(number, 7), 0.3)
            order = update_lab.write_order(
                folder / f"{dist.get_rank()}-{number}",
                trajectories,
                str(folder / f"{name} {number}"),
                iteration=number,
                checkpoint_in=before,
                estimator=estimate,
            )
            result = learner.execute(order)
            before = result.checkpoint
            figures = {key: result.metrics[key] for key in FIGURES if key in result.metrics}
            results[name].append((figures, update_lab.weights(before)))
    return results


@pytest.mark.more
@pytest.mark.process
@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("dtype", "splits", "near"),
    [
        pytest.param("float64", [(3, 60)], 1e-6, id="float64"),
        pytest.param("float64", [(2, 8192)], 1e-6, id="float64, two ranks", marks=pytest.mark.long),
        pytest.param("float32", [(3, 60)], 1e-5, id="float32", marks=pytest.mark.long),
    ],
)
def test_ranks_and_micro_batches_change_nothing(
    policy64: Path, tmp_path: Path, dtype: str, splits: list[tuple[int, int]], near: float
) -> None:
    """With eps 1 Adam's steps are smooth in the gradient, so how far each weight moved tells gradients apart.

    Models compute norms in float32 whatever their type, so that another order of sums shows in the eighth digit.
    """
    rounding = torch.finfo(DTYPES[dtype]).eps
    before = load_file(policy64 / "model.safetensors")
    one = learn(policy64, 1, tmp_path / "one", 100, dtype)
    for ranks, budget in splits:
        several = update_lab.on_ranks(ranks, learn, policy64, ranks, tmp_path / str(ranks), budget, dtype)
        for name, results in one.items():
            for (single, weights), (figures, others) in zip(results, several[name], strict=True):
                assert figures == pytest.approx(single, rel=near, abs=near), name
                for key, value in weights.items():
                    moved = torch.linalg.norm(value - before[key])
                    allowed = near * moved + rounding * torch.linalg.norm(value)
                    assert torch.linalg.norm(others[key] - value) <= allowed, (name, key, ranks)


def learn_in_16_bits(policy: Path, workers: int, folder: Path) -> tuple[float, Any]:
    """An order of policy gradient: the gradient's norm and the weights."""
    fields = {"workers": workers, "dtype": "bfloat16", "lr": 0.1, "eps": 1.0, "kl_coefficient": 0.1}
    learner = Learner(UpdateSettings.model_validate(fields), update_lab.places(policy), torch.device("cpu"))
    trajectories = update_lab.sample_as(policy, update_lab.make_trajectories(0, 7), 0.3)
    order = update_lab.write_order(folder / str(dist.get_rank()), trajectories, str(folder / "out"))
    result = learner.execute(order)
    return result.metrics["update/grad_norm"], update_lab.weights(result.checkpoint)


@pytest.mark.more
@pytest.mark.process
@pytest.mark.usefixtures("alone")
def test_two_ranks_learn_in_16_bits_what_one_does(policy: Path, tmp_path: Path) -> None:
    before = load_file(policy / "model.safetensors")
    norm, weights = learn_in_16_bits(policy, 1, tmp_path / "one")
    other_norm, others = update_lab.on_ranks(2, learn_in_16_bits, policy, 2, tmp_path / "two")
    assert other_norm == pytest.approx(norm, rel=0.02)
    moved, apart = [
        torch.linalg.norm(torch.cat([(mine[name] - theirs[name].float()).flatten() for name in mine]))
        for mine, theirs in ((weights, before), (weights, others))
    ]
    assert apart < 0.02 * moved
