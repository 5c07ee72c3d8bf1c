"""What the cleaning of a storage deletes, of runs that nobody trains."""

import asyncio
import logging
from pathlib import Path

import pytest
from rich.console import Console

from nbrl.flows import clean
from nbrl.flows.display.progress import ProgressDisplay
from nbrl.infra.errors import DamagedError, HeldError
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.runs.config import CheckpointSettings, RunConfig
from nbrl.tasks.runs.ending import Ending
from nbrl.tasks.runs.epochs import take
from nbrl.tasks.runs.lease import last_ending
from nbrl.tasks.runs.recipes import load
from nbrl.tasks.runs.run import Run
from nbrl.tasks.runs.writer import writing
from tests.tasks.checkpoint_lab import RUN, made, numbers
from tests.tasks.comparison.made import ended
from tests.tasks.comparison.made import run as other_run


@pytest.fixture
def storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Storage:
    config = load("tiny-cpu", []).model_copy(update={"checkpoints": CheckpointSettings(keep_last=2)})

    def resumed(storage: Storage, name: str, overrides: object) -> RunConfig:
        return config

    monkeypatch.setattr(clean, "resumed_config", resumed)
    storage = Storage(StorageSettings(root=str(tmp_path)))
    storage.write_json(RUN.layout.identity, RUN.model_dump(mode="json"))
    return storage


def cleaned(storage: Storage, dry_run: bool) -> list[str]:
    return asyncio.run(clean._clean(storage, RUN, dry_run, ProgressDisplay(Console(quiet=True))))


def test_a_dry_run_names_what_the_next_one_deletes_and_the_third_finds_nothing(storage: Storage, tmp_path: Path) -> None:
    _, records = made(storage, tmp_path, 4)
    before = storage.list(RUN.layout.folder)
    foreseen = cleaned(storage, dry_run=True)
    assert foreseen == [record.checkpoint for record in records[:2]]
    assert storage.list(RUN.layout.folder) == before
    deleted = cleaned(storage, dry_run=False)
    assert deleted[:2] == foreseen
    assert numbers(storage, "hf/") == [3, 4]
    assert cleaned(storage, dry_run=False) == []


def test_leftovers_go_and_a_run_in_training_is_left_alone(storage: Storage, tmp_path: Path) -> None:
    made(storage, tmp_path, 2)
    left = f"{RUN.layout.iteration(0).folder}/{take(storage, RUN.layout).name}/round-0/rewards.parquet"
    storage.write_bytes(left, b"nobody names it")

    async def meanwhile() -> None:
        async with writing(RUN, storage, False, lambda said: None):
            await clean._clean(storage, RUN, False, ProgressDisplay(Console(quiet=True)))

    with pytest.raises(HeldError, match="is being worked on by process"):
        asyncio.run(meanwhile())
    assert storage.exists(left)
    assert left in cleaned(storage, dry_run=False)
    assert not storage.exists(left)


def test_a_run_that_failed_still_has_failed_after_it_was_cleaned(storage: Storage, tmp_path: Path) -> None:
    made(storage, tmp_path, 4)
    ended(storage, RUN, "FAILED", "the engine died")
    before = last_ending(storage, RUN.layout)
    assert cleaned(storage, dry_run=False)
    assert last_ending(storage, RUN.layout) == before == (Ending("FAILED", "the engine died"), 1.0)


def left_over(storage: Storage, run: Run) -> str:
    """An object of the run that nobody names."""
    key = f"{run.layout.iteration(0).folder}/{take(storage, run.layout).name}/round-0/rewards.parquet"
    storage.write_bytes(key, b"nobody names it")
    return key


def test_a_damaged_run_stops_the_cleaning_of_no_other_and_fails_it_at_the_end(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pages: list[str] = []

    async def page(text: str, **given: str) -> None:
        pages.append(text)

    monkeypatch.setattr(clean, "acreate_markdown_artifact", page)
    monkeypatch.setattr(clean, "get_run_logger", logging.getLogger)
    made(storage, tmp_path, 2)
    whole = [other_run(storage, name, {}, rollouts=[0.5]) for name in ("a", "z")]
    also = other_run(storage, "s", {}, rollouts=[0.5])
    keys = [left_over(storage, each) for each in whole]
    for run in (RUN, also):
        record = run.layout.iteration(0).record
        storage.write_bytes(record, storage.read_bytes(record)[:-40])
    words = r"^not cleaned: r, s; the first because .*runs/r/iterations/000000/record.json is damaged"
    with pytest.raises(DamagedError, match=words):
        asyncio.run(clean.clean.fn(clean.CleanOrder(root=str(tmp_path))))
    assert not any(map(storage.exists, keys))
    assert all(key in pages[0] for key in keys)
