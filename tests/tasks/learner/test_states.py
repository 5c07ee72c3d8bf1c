"""Checkpoints whose state comes later or not at all: a run goes on from them with the same bits."""

import errno
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
import torch.distributed as dist

from nbrl.infra.errors import DamagedCheckpointError
from nbrl.infra.manifest import MANIFEST, check_whole
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.advantage.settings import AdvantageSettings
from nbrl.tasks.errors import UpdateError
from nbrl.tasks.learner.checkpoint.local_store import LocalCheckpoints
from nbrl.tasks.learner.learner import Learner
from nbrl.tasks.learner.orders import StoredTable, UpdateOrder, UpdateResult
from nbrl.tasks.learner.places import Places
from nbrl.tasks.learner.settings import UpdateSettings
from tests.tasks.learner import update_lab

State = Literal["awaited", "later", "none"]
GAE = AdvantageSettings(estimator="gae")
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"lr": 1e-2, "warmup_steps": 2, "lr_schedule": "cosine", "lr_decay_steps": 9},
    "critic": {"lr": 1e-2, "kl_coefficient": 0.1, "critic": {"lr": 0.1}, "minibatches": 2, "loss": {"kind": "ppo"}},
    "adapters": {"lr": 1e-2, "lora": {"rank": 2}},
}


class Run:
    """Orders of a run, each over a batch of its own, and learners that carry them out."""

    def __init__(self, root: Path, policy: Path, **settings: Any) -> None:
        self.root, self.policy = root, policy
        self.storage = Storage(StorageSettings(root=str(root)))
        self.settings = UpdateSettings.model_validate({"workers": 1} | settings)

    def learner(self) -> Learner:
        return Learner(self.settings, Places(update_lab.places(self.policy).model, self.storage), torch.device("cpu"))

    def folder(self, number: int) -> Path:
        return self.root / self.key(number)

    def key(self, number: int) -> str:
        return f"runs/a/checkpoints/{number:06d}-e"

    def order(self, number: int, state: State, **fields: Any) -> UpdateOrder:
        """The one that makes the update with this number, from 1."""
        work = self.root / f"runs/a/orders/{number}-{dist.get_rank()}"
        estimator = GAE if self.settings.critic else None
        order = update_lab.write_order(work, update_lab.make_trajectories(number), "x", estimator=estimator)
        named = {"iteration": number - 1, "checkpoint_in": self.key(number - 1) if number > 1 else None}
        tables = {
            "trajectories": [StoredTable(key=str((work / "trajectories.parquet").relative_to(self.root)))],
            "advantages": StoredTable(key=str((work / "advantages.parquet").relative_to(self.root))),
        }
        return order.model_copy(update=named | tables | {"checkpoint_out": self.key(number), "state": state} | fields)

    def make(self, learner: Learner, states: Sequence[State], first: int = 1) -> list[UpdateResult]:
        """Carry out orders in a row, each with those since the last state."""
        made = []
        for number, state in enumerate(states, first):
            base = max((each for each in self.stated() if each < number), default=0)
            repeats = [self.order(each, "none") for each in range(base + 1, number)]
            made.append(learner.execute(self.order(number, state, repeats=repeats)))
        return made

    def stated(self) -> list[int]:
        """Updates of the checkpoints whose manifest names a state."""
        names = {number: self.storage.read_manifest(self.key(number)) for number in range(1, 9) if self.folder(number).is_dir()}
        return [number for number, manifest in names.items() if "state/.metadata" in manifest]


@pytest.mark.parametrize("kind", ["plain", "adapters", pytest.param("critic", marks=pytest.mark.more)])
@pytest.mark.usefixtures("alone")
def test_a_run_goes_on_from_any_checkpoint_with_the_same_bits_whether_or_not_it_has_a_state(
    policy: Path, tmp_path: Path, kind: str
) -> None:
    undisturbed, run = Run(tmp_path / "a", policy, **KINDS[kind]), Run(tmp_path / "b", policy, **KINDS[kind])
    expected = undisturbed.make(undisturbed.learner(), ["awaited"] * 5)
    made: list[UpdateResult] = []
    states: list[State] = ["none", "later", "none", "none", "later"]
    for number, state in enumerate(states, 1):  # a kill after each
        learner = run.learner()
        made += run.make(learner, [state], number)
        learner.settle()
        check_whole(run.folder(number))
    assert run.stated() == [2, 5]
    assert [each.state for each in made] == [each.state for each in expected]
    assert [each.proof for each in made] == [each.proof for each in expected]
    assert [each.metrics["update/repeated"] for each in made] == [0, 1, 0, 1, 2]
    assert (run.folder(5) / "hf/model.safetensors").read_bytes() == (undisturbed.folder(5) / "hf/model.safetensors").read_bytes()


@pytest.mark.usefixtures("alone")
def test_a_learner_repeats_nothing_that_it_has_in_memory(policy: Path, tmp_path: Path) -> None:
    run = Run(tmp_path, policy)
    made = run.make(run.learner(), ["none", "none", "later"])
    assert [each.metrics["update/repeated"] for each in made] == [0, 0, 0]


@pytest.mark.usefixtures("alone")
def test_states_are_added_beside_the_next_order_and_are_there_before_the_next_ones_are_written(
    policy: Path, tmp_path: Path
) -> None:
    run = Run(tmp_path, policy)
    learner = run.learner()
    run.make(learner, ["later", "later"])
    assert 1 in run.stated()
    learner.settle()
    assert run.stated() == [1, 2]
    assert not list(tmp_path.rglob("*.partial"))


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("cut", ["before the manifest names it", "while it is written"])
def test_a_state_that_a_kill_cut_off_is_none(policy: Path, tmp_path: Path, cut: str) -> None:
    run = Run(tmp_path, policy)
    learner = run.learner()
    first = run.make(learner, ["none", "later"])
    learner.settle()
    manifest = run.folder(2) / MANIFEST
    named = run.storage.read_manifest(run.key(2))
    manifest.write_text(json.dumps({name: digest for name, digest in named.items() if not name.startswith("state/")}))
    if cut == "while it is written":
        partial = run.folder(2).with_name("000002-e.states.partial")
        partial.mkdir()
        (run.folder(2) / "state").rename(partial / "state")
        (partial / "state/__0_0.distcp").write_bytes(b"cut")
    again = run.make(run.learner(), ["later"], 3)[0]
    assert again.metrics["update/repeated"] == 2
    assert first[1].state != again.state


def two_ranks(policy: Path, root: Path, states: list[State], first: int) -> list[tuple[str, float]]:
    run = Run(root, policy, workers=dist.get_world_size(), lr=1e-2)
    learner = run.learner()
    made = run.make(learner, states, first)
    learner.settle()
    return [(each.state, each.metrics["update/repeated"]) for each in made]


@pytest.mark.more
@pytest.mark.process
@pytest.mark.usefixtures("alone")
def test_ranks_repeat_together_and_another_number_of_them_is_told_what_to_do(policy: Path, tmp_path: Path) -> None:
    expected = update_lab.on_ranks(2, two_ranks, policy, tmp_path / "a", ["awaited"] * 4, 1)
    made = update_lab.on_ranks(2, two_ranks, policy, tmp_path / "b", ["later", "none", "none"], 1)
    made += update_lab.on_ranks(2, two_ranks, policy, tmp_path / "b", ["later"], 4)
    assert [state for state, _ in made] == [state for state, _ in expected]
    assert [repeated for _, repeated in made] == [0, 0, 0, 2]
    update_lab.on_ranks(2, two_ranks, policy, tmp_path / "c", ["none", "none"], 1)
    run = Run(tmp_path / "c", policy, lr=1e-2)
    with pytest.raises(UpdateError, match=r"000001-e has no state .* another number of ranks .* by --redo 1:update$"):
        run.make(run.learner(), ["later"], 3)


@pytest.mark.usefixtures("alone")
def test_a_state_that_cannot_be_stored_leaves_the_checkpoint_without_and_ends_the_next_order(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path, policy)
    learner = run.learner()

    def full(*_: object) -> None:
        raise UpdateError("cannot write state, is the disk full?")

    with monkeypatch.context() as patch:
        patch.setattr(LocalCheckpoints, "add_states", full)
        run.make(learner, ["later"])
        with pytest.raises(UpdateError, match="is the disk full"):
            run.make(learner, ["later"], 2)
    check_whole(run.folder(1))
    assert run.stated() == []
    assert not list(tmp_path.rglob("*.partial"))
    assert run.make(learner, ["later"], 2)[0].metrics["update/repeated"] == 1


@pytest.mark.usefixtures("alone")
def test_where_the_disk_is_full_while_a_state_is_written_nothing_is_left_of_it(
    policy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path, policy)
    learner = run.learner()
    opened = os.open

    def full(path: Any, *more: Any, **options: Any) -> int:
        if str(path).endswith(".distcp"):
            raise OSError(errno.ENOSPC, "No space left on device")
        return opened(path, *more, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", full)
        run.make(learner, ["later"])
        with pytest.raises(UpdateError, match="No space left on device"):
            learner.settle()
    assert not list(tmp_path.rglob("*.partial"))
    assert run.stated() == []


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("damage", ["other bytes", "a link out of the storage"])
def test_a_state_that_is_not_what_was_written_is_not_gone_on_from(policy: Path, tmp_path: Path, damage: str) -> None:
    run = Run(tmp_path / "root", policy)
    learner = run.learner()
    run.make(learner, ["later", "none"])
    learner.settle()
    state = run.folder(1) / "state"
    if damage == "other bytes":
        (state / "__0_0.distcp").write_bytes(b"x" * (state / "__0_0.distcp").stat().st_size)
    else:
        state.rename(tmp_path / "elsewhere")
        state.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DamagedCheckpointError, match=r"is damaged: it is not what was written|is a link"):
        run.make(run.learner(), ["none"], 3)


@pytest.mark.usefixtures("alone")
def test_a_table_of_a_repeated_update_that_is_gone_says_so(policy: Path, tmp_path: Path) -> None:
    run = Run(tmp_path, policy)
    run.make(run.learner(), ["none"])
    order = run.order(2, "none", repeats=[run.order(1, "none")])
    run.storage.delete(order.repeats[0].advantages.key)
    with pytest.raises(DamagedCheckpointError, match=r"advantages\.parquet does not exist"):
        run.learner().execute(order)
