"""What is traded for memory, for speed or for the same bits each time."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from nbrl.tasks.advantage.settings import AdvantageSettings
from nbrl.tasks.learner.learner import Learner
from nbrl.tasks.learner.orders import UpdateResult
from nbrl.tasks.learner.settings import UpdateSettings
from tests.tasks.learner import update_lab
from tests.tasks.learner.update_lab import weights

pytestmark = pytest.mark.usefixtures("alone")


def learn(policy: Path, folder: Path, estimate: AdvantageSettings | None = None, **fields: Any) -> list[UpdateResult]:
    """Two orders in a row."""
    settings = UpdateSettings.model_validate({"workers": 1, "lr": 1e-2, "kl_coefficient": 0.1} | fields)
    learner, results = Learner(settings, update_lab.places(policy), torch.device("cpu")), list[UpdateResult]()
    for number in range(2):
        before = results[-1].checkpoint if results else None
        order = update_lab.write_order(
            folder,
            update_lab.make_trajectories(number),
            str(folder / str(number)),
            iteration=number,
            checkpoint_in=before,
            estimator=estimate,
        )
        results.append(learner.execute(order))
    return results


def assert_same(left: list[UpdateResult], right: list[UpdateResult]) -> None:
    for one, other in zip(left, right, strict=True):
        mine, theirs = weights(one), weights(other)
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)
        assert one.proof == other.proof
        assert one.metrics["update/grad_norm"] == other.metrics["update/grad_norm"]


@contextmanager
def kept_bytes() -> Iterator[list[int]]:
    """Sizes of what the forward passes keep for the backward passes; what a checkpointed layer hides is not kept."""
    sizes: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        sizes.append(tensor.numel() * tensor.element_size())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield sizes


@pytest.mark.parametrize(
    "fields",
    [{}, *(pytest.param(each, marks=pytest.mark.more) for each in ({"dtype": "bfloat16"}, {"critic": {"lr": 1e-3}}))],
    ids=["float32", "bfloat16", "critic"],
)
def test_activation_checkpointing_keeps_less_and_changes_no_bit(policy: Path, tmp_path: Path, fields: dict[str, Any]) -> None:
    estimate = AdvantageSettings(estimator="gae") if "critic" in fields else None
    kept, results = [], []
    for on in (False, True):
        with kept_bytes() as sizes:
            results.append(learn(policy, tmp_path / str(on), estimate, activation_checkpointing=on, **fields))
        kept.append(sum(sizes))
    assert_same(*results)
    assert kept[1] < 0.5 * kept[0]


@pytest.mark.long
@pytest.mark.process
@pytest.mark.parametrize("recompute", [False, True])
def test_compiled_layers_learn_the_same(policy: Path, tmp_path: Path, recompute: bool) -> None:
    stock, compiled = [
        learn(policy, tmp_path / str(on), compile_layers=on, activation_checkpointing=recompute and on) for on in (False, True)
    ]
    for one, other in zip(stock, compiled, strict=True):
        mine, theirs = weights(one), weights(other)
        assert max(float((mine[name] - theirs[name]).abs().max()) for name in mine) < 2e-4  # of steps of 1e-2
        assert one.metrics["update/grad_norm"] == pytest.approx(other.metrics["update/grad_norm"], rel=1e-4)


@pytest.mark.more
def test_deterministic_runs_are_bitwise_the_same(policy: Path, tmp_path: Path) -> None:
    try:
        first = learn(policy, tmp_path / "first", deterministic=True)
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.backends.cudnn.deterministic
        assert_same(first, learn(policy, tmp_path / "second", deterministic=True))
    finally:
        torch.use_deterministic_algorithms(False)
    learn(policy, tmp_path / "off")
    assert not torch.are_deterministic_algorithms_enabled()
    assert not torch.backends.cudnn.deterministic


@pytest.mark.more
def test_the_gradient_is_clipped_by_the_norm_of_the_whole_model(policy64: Path, tmp_path: Path) -> None:
    """With lr 1, eps 1 and no decay Adam's first step is g / (|g| + 1), from which g can be had."""
    exact = {"dtype": "float64", "lr": 1.0, "eps": 1.0, "weight_decay": 0.0}
    before, gradients, norms = load_file(policy64 / "model.safetensors"), [], []
    for clip in (1e9, 0.01):
        first = learn(policy64, tmp_path / str(clip), **exact, grad_clip=clip)[0]
        steps = torch.cat([(before[name] - value).flatten() for name, value in weights(first).items()])
        gradients.append(steps / (1 - steps.abs()))
        norms.append(first.metrics["update/grad_norm"])
    assert norms == pytest.approx([torch.linalg.norm(gradients[0]).item()] * 2, rel=1e-9)
    assert norms[0] > 0.01
    torch.testing.assert_close(gradients[1], gradients[0] * 0.01 / (norms[0] + 1e-6), rtol=1e-9, atol=1e-12)
