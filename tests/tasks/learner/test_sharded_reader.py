"""States of the optimiser that another user made: they are read, and nothing that they name is executed."""

import builtins
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import metadata as descriptions
from torch.distributed.checkpoint.state_dict import get_state_dict

from nbrl.tasks.errors import UpdateError
from nbrl.tasks.learner.checkpoint import sharded_state
from nbrl.tasks.learner.checkpoint.sharded_reader import ShardedReader

pytestmark = pytest.mark.usefixtures("alone")


class Call:
    """Calls a function where it is unpickled."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.called = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self.called


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """The folder of a state of one weight."""
    model = torch.nn.Linear(1, 1)
    sharded_state.save(tmp_path / "state", model, torch.optim.AdamW(model.parameters()), 3, dist.group.WORLD).check()
    return tmp_path / "state"


def read(folder: Path) -> None:
    model = torch.nn.Linear(1, 1)
    sharded_state.check(folder, model)
    sharded_state.load(folder, model, torch.optim.AdamW(model.parameters()))


@pytest.mark.parametrize(
    "called",
    [
        lambda proof: Call(os.mkdir, str(proof)),
        lambda proof: Call(builtins.exec, f"import os; os.mkdir({str(proof)!r})"),
        lambda proof: Call(torch.load, str(proof)),
        lambda _: Call(getattr, "text", "upper"),
        lambda _: Call(getattr, descriptions.Metadata, "mkdir"),
        lambda _: {"no": "metadata"},
    ],
)
@pytest.mark.attack(
    tried="Run code by the metadata of a checkpoint's optimiser state, which torch unpickles",
    wall="they are not unpickled: what they describe is looked at part by part",
    effect="one sentence; nothing ran",
)
def test_metadata_make_descriptions_of_tensors_and_nothing_else(
    state: Path, tmp_path: Path, called: Callable[[Path], Any]
) -> None:
    (state / ".metadata").write_bytes(pickle.dumps(called(tmp_path / "proof")))
    with pytest.raises(
        UpdateError,
        match=r"cannot read .*/state: \w+: it (holds|has the operation)",
    ):
        read(state)
    assert not (tmp_path / "proof").exists()


def doubled(levels: int) -> tuple[Any, ...]:
    """A small value that takes time and memory of two to the levels wherever it is hashed or shown."""
    value: tuple[Any, ...] = ("x",)
    for _ in range(levels):
        value = (value, value)
    return value


@pytest.mark.parametrize(
    "bomb",
    [
        b"\x80\x02]r\xff\xff\xff\xff.",  # the last of four thousand million places of a memo
        b"\x80\x02}" + pickle.dumps(doubled(60), 2)[2:-1] + b"K\x01s.",  # as the key of a dictionary
        pickle.dumps(Call(getattr, descriptions._MEM_FORMAT_ENCODING, doubled(60))),
        pickle.dumps(Call(descriptions.MetadataIndex, doubled(60))),
        b"(" * 1_000_000 + b".",
        b"\x80\x02" + b"\x85" * 1_000_000 + b".",
    ],
    ids=["memo", "key", "name", "index", "marks", "tuples"],
)
@pytest.mark.attack(
    tried="A few bytes of such metadata that take all memory, or for ever, to unpickle",
    wall="no value is made, hashed or shown before its parts are looked at",
    effect="one sentence",
)
def test_metadata_take_time_and_memory_of_their_own_size(state: Path, bomb: bytes) -> None:
    (state / ".metadata").write_bytes(bomb)
    with pytest.raises(UpdateError, match=r"cannot read .*/state: "):
        read(state)


def test_the_metadata_that_are_read_are_those_of_torch(state: Path) -> None:
    stock, ours = dcp.FileSystemReader(state).read_metadata(), ShardedReader(state).read_metadata()
    assert ours.state_dict_metadata == stock.state_dict_metadata
    assert ours.storage_data == stock.storage_data


@pytest.mark.parametrize("by_getattr", [False, True], ids=["by its value", "by getattr"])
def test_a_state_is_read_however_a_release_of_python_pickles_enumerations(
    state: Path, monkeypatch: pytest.MonkeyPatch, by_getattr: bool
) -> None:
    metadata = dcp.FileSystemReader(state).read_metadata()
    kind = descriptions._MEM_FORMAT_ENCODING
    reduced = (lambda self, _: (getattr, (kind, self.name))) if by_getattr else (lambda self, _: (kind, (self.value,)))
    monkeypatch.setattr(kind, "__reduce_ex__", reduced)
    (state / ".metadata").write_bytes(pickle.dumps(metadata))
    assert (b"getattr" in (state / ".metadata").read_bytes()) is by_getattr
    read(state)


@pytest.mark.attack(
    tried="Run code by a value of such a state that is no tensor",
    wall="read as weights are, without classes",
    effect="one sentence; nothing ran",
)
def test_values_between_tensors_are_read_as_weights_are(tmp_path: Path) -> None:
    model = torch.nn.Linear(1, 1)
    weights, optim = get_state_dict(model, torch.optim.AdamW(model.parameters()))
    optim["param_groups"][0]["eps"] = Call(os.mkdir, str(tmp_path / "proof"))
    dcp.save({"model": weights, "optim": optim, "steps": torch.tensor(0)}, checkpoint_id=tmp_path / "other")
    with pytest.raises(UpdateError, match=r"cannot read .*/other: rank 0: UnpicklingError"):
        read(tmp_path / "other")
    assert not (tmp_path / "proof").exists()


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_metadata_that_are_no_file_of_the_folder_are_refused_at_once(state: Path, tmp_path: Path, kind: str) -> None:
    metadata = state / ".metadata"
    metadata.rename(tmp_path / "outside")
    if kind == "pipe":
        os.mkfifo(metadata)
    else:
        metadata.symlink_to(tmp_path / "outside")
    with pytest.raises(UpdateError, match=r"its \.metadata is no regular file"):
        read(state)


@pytest.mark.parametrize("place", ["../outside", "/etc/hostname", "link", ".."])
def test_shards_lie_beside_their_metadata(state: Path, tmp_path: Path, place: str) -> None:
    (shard,) = state.glob("*.distcp")
    (tmp_path / "outside").write_bytes(shard.read_bytes())
    (state / "link").symlink_to(tmp_path / "outside")
    metadata = dcp.FileSystemReader(state).read_metadata()
    for info in metadata.storage_data.values():
        info.relative_path = place
    (state / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(UpdateError, match="which is not a file beside it"):
        read(state)
