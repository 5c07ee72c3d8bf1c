"""No flip of a bit in what a run stored is read as other content: it is an error, or nothing changed."""

import contextlib
import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from nbrl.infra.errors import StorageError
from nbrl.infra.manifest import MANIFEST, check_folder
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.environments import stored as data
from nbrl.tasks.environments.stored import SPLITS
from nbrl.tasks.errors import RunError
from nbrl.tasks.runs.history import Record, finished, read_record
from nbrl.tasks.runs.opening import stored_config
from nbrl.tasks.runs.results import NodeResult, results_of
from nbrl.tasks.runs.run import Run, known_run
from nbrl.tasks.runs.scope import Artifact
from tests.durability.crash_lab import RUN

pytestmark = pytest.mark.process

Read = Callable[[], object]


class Stored:
    """A copy of a run on a storage, and how each kind of its objects is read."""

    def __init__(self, folder: Path) -> None:
        self.storage = Storage(StorageSettings(root=str(folder)))
        self.folder = folder
        self.run: Run = known_run(self.storage, RUN)
        self.config = stored_config(self.storage, self.run)
        first, second = read_record(self.storage, self.run, 0), read_record(self.storage, self.run, 1)
        assert first
        assert second
        self.record: Record = first
        self.checkpoint = second.checkpoint

    def kinds(self) -> dict[str, tuple[str, Read]]:
        """Key of an object of each kind, and the read that a run makes of it."""
        layout, storage = self.run.layout, self.storage
        tables = dict(zip(("prompts", "trajectories", "rewards", "selection"), self.record.rounds[0], strict=True))
        tables["advantages"] = next(each for each in self.record.artifacts if each.path.endswith("/advantages.parquet"))
        kinds: dict[str, tuple[str, Read]] = {name: (each.path, self._table(each)) for name, each in tables.items()}
        for split in SPLITS:
            kinds[split] = layout.data.split(split), self._questions(split)
        environments = self.config.environments
        kinds["corpus"] = layout.data.corpus("world"), lambda: data.check(storage, layout.data)
        kinds["digests"] = layout.data.digests, lambda: data.corpora(storage, layout.data, environments)
        kinds["run"] = layout.identity, lambda: known_run(storage, RUN)
        kinds["record"] = layout.iteration(0).record, lambda: read_record(storage, self.run, 0)
        kinds["summary"] = layout.summary, lambda: finished(self.run, self.config, storage)
        result = storage.list(layout.evaluation(0).results)[0]
        kinds["result of a node"] = result, lambda: _named(results_of(storage, layout.evaluation(0)))
        merged = layout.iteration(0).merged_results
        kinds["results of an iteration"] = merged, lambda: storage.read_json(merged)
        trajectories = self.record.rounds[0].trajectories
        kinds["chunk"] = next(iter(trajectories.parts)), self._table(trajectories)
        update = next(each for each in self.record.artifacts if each.path == self.record.checkpoint)
        for name, (part, digest) in zip(("proof", "log-probs"), update.parts.items(), strict=True):
            kinds[name] = part, lambda part=part, digest=digest: storage.read_bytes(part, digest)  # type: ignore[misc]
        for name in ("hf/model.safetensors", "state/model.safetensors", "result.json", MANIFEST):
            kinds[name] = f"{self.checkpoint}/{name}", lambda name=name: self._checkpoint(name)  # type: ignore[misc]
        return kinds

    def _table(self, artifact: Artifact) -> Read:
        return lambda: self.storage.read_table(artifact.path, artifact.digest).to_pylist()

    def _questions(self, split: str) -> Read:
        return lambda: data.read(self.storage, self.run.layout.data, split).to_pylist()

    def _checkpoint(self, name: str) -> object:
        folder = self.folder / self.checkpoint
        check_folder(folder)
        return json.loads((folder / name).read_bytes()) if name == MANIFEST else (folder / name).read_bytes()


def _named(results: list[NodeResult]) -> list[str]:
    return [result.model_dump_json() for result in results]


@pytest.fixture
def stored(whole: tuple[Path, int], tmp_path: Path) -> Stored:
    shutil.copytree(whole[0] / "root", tmp_path / "root")
    return Stored(tmp_path / "root")


def misread(stored: Stored, count: int, seed: int) -> dict[str, int]:
    """For each kind, how many of `count` flips of a bit were read as other content."""
    found: dict[str, int] = {}
    for kind, (key, read) in stored.kinds().items():
        path, draw = stored.folder / key, random.Random(f"{seed} {kind}")
        data, content = path.read_bytes(), read()
        found[kind] = 0
        for _ in range(count):
            flipped = bytearray(data)
            flipped[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
            path.write_bytes(flipped)
            with contextlib.suppress(StorageError, RunError):
                found[kind] += read() != content
        path.write_bytes(data)
        assert read() == content
    return found


@pytest.mark.more
def test_no_flip_of_a_bit_is_read_as_other_content(stored: Stored) -> None:
    assert not any(misread(stored, 25, seed=0).values())


@pytest.mark.long
def test_none_of_a_thousand_flips_of_a_bit_per_kind_is_read_as_other_content(stored: Stored) -> None:
    found = misread(stored, 1000, seed=1)
    assert len(found) >= 18
    assert not any(found.values()), found


@pytest.mark.parametrize("data", [b"", b"half"], ids=["empty", "half"])
def test_an_object_that_is_empty_or_half_there_is_one_sentence(stored: Stored, data: bytes) -> None:
    for kind, (key, read) in stored.kinds().items():
        path = stored.folder / key
        before = path.read_bytes()
        path.write_bytes(before[: len(before) // 2] if data else b"")
        with pytest.raises((StorageError, RunError)) as caught:
            read()
        assert "\n" not in str(caught.value), kind
        path.write_bytes(before)
