"""What the learner keeps in memory and on disk, and what its seed decides."""

import errno
import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor

from nbrl.tasks.errors import UpdateError
from nbrl.tasks.learner import learner as learner_module
from nbrl.tasks.learner.checkpoint import hugging_face
from nbrl.tasks.learner.model.policy_model import PolicyModel
from tests.tasks.learner import update_lab
from tests.tasks.learner.update_lab import make_learner

pytestmark = pytest.mark.usefixtures("alone")


def test_between_passes_every_weight_is_sharded(policy: Path, tmp_path: Path) -> None:
    learner = make_learner(policy, kl_coefficient=0.1)
    learner.execute(update_lab.write_order(tmp_path, update_lab.make_trajectories(1), str(tmp_path / "out")))
    for model in (learner._reference, learner._loaded.policy):
        assert all(isinstance(parameter, DTensor) for parameter in model.parameters())


@pytest.mark.more
def test_after_a_failed_order_nothing_is_left_and_one_model_is_loaded(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = make_learner(policy, kl_coefficient=0)
    order = update_lab.write_order(tmp_path, update_lab.make_trajectories(1), str(tmp_path / "out"))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(hugging_face, "write", full)
        with pytest.raises(UpdateError, match=r"cannot write .*/out\.partial, is the disk full\? OSError: .*No space left"):
            learner.execute(order)
    assert not list(tmp_path.glob("out*"))
    alive: list[bool] = []
    before, load = weakref.ref(learner._loaded.policy), learner_module.load_sharded

    def spy(*arguments: Any, **options: Any) -> PolicyModel:
        alive.append(before() is not None)
        return load(*arguments, **options)

    gc.collect()
    monkeypatch.setattr(learner_module, "load_sharded", spy)
    result = learner.execute(order)
    assert alive == [False]
    fresh = make_learner(policy, kl_coefficient=0).execute(
        order.model_copy(update={"checkpoint_out": update_lab.key(tmp_path / "fresh")})
    )
    assert result.proof == fresh.proof


def test_a_step_without_a_number_is_refused(policy: Path, tmp_path: Path) -> None:
    trajectories = update_lab.make_trajectories(1)
    order = update_lab.write_order(tmp_path, trajectories, str(tmp_path / "out"), lambda row: None if row == 1 else 1.0)
    with pytest.raises(UpdateError, match=r"^step \d of trajectory t\d has no advantage$"):
        make_learner(policy).execute(order)


@pytest.mark.more
def test_the_seed_of_an_order_decides_its_minibatches(policy: Path, tmp_path: Path) -> None:
    trajectories = update_lab.make_trajectories(1, 8)
    for index, each in enumerate(trajectories):
        each.group = f"g{index}"
    found = []
    for number, seed in enumerate((1, 1, 2)):
        order = update_lab.write_order(tmp_path, trajectories, str(tmp_path / str(number)), seed=seed)
        made = make_learner(policy, kl_coefficient=0, minibatches=4, loss={"kind": "ppo"}).execute(order)
        found.append(update_lab.weights(made)["model.embed_tokens.weight"])
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_the_seed_of_a_run_decides_where_adapters_begin(policy: Path) -> None:
    def adapter(seed: int) -> torch.Tensor:
        parameters = dict(make_learner(policy, seed, lora={}, kl_coefficient=0)._loaded.policy.named_parameters())
        name = next(name for name in parameters if ".lora_A." in name)
        return parameters[name].full_tensor()

    assert torch.equal(adapter(1), adapter(1))
    assert not torch.equal(adapter(1), adapter(2))
