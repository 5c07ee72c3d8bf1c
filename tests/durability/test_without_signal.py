"""Iterations that teach nothing, with the real flow over doubles: they are recorded and skipped; only patience ends the run."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.environments.questions import table_of
from nbrl.tasks.runs.history import Record, newest_record, read_record
from nbrl.tasks.runs.run import known_run
from tests.durability.conftest import Labs
from tests.durability.crash_lab import RUN

pytestmark = pytest.mark.process


@pytest.fixture
def impossible(tmp_path: Path) -> list[str]:
    """Settings of a run whose questions have no answer that the doubles give."""
    for split in ("train", "held_out"):
        rows = [
            {"id": f"{split}-{n}", "question": f"Which is {n}?", "answers": [f"{n}77"], "ability": "qa", "source": "s"}
            for n in range(8)
        ]
        pq.write_table(table_of(rows), tmp_path / f"{split}.parquet")
    pq.write_table(pa.table({"passage": ["nothing of use"]}), tmp_path / "corpus.parquet")
    files = ", ".join(f"{name}: {tmp_path}/{name}.parquet" for name in ("train", "held_out", "corpus"))
    settings = ["rollout.prompts=2", "iterations=9", "select.drop_rate=1.0", "select.max_rounds=1"]
    return [f"environments={{own: {{kind: files, {files}}}}}", *settings]


def records(folder: Path) -> list[Record]:
    storage = Storage(StorageSettings(root=str(folder)))
    run = known_run(storage, RUN)
    newest = newest_record(storage, run)
    return [] if newest is None else [each for n in range(newest.iteration + 1) if (each := read_record(storage, run, n))]


@pytest.mark.more
def test_a_run_that_learns_nothing_ends_after_its_patience_and_more_patience_goes_on_with_the_next_prompts(
    labs: Labs, tmp_path: Path, impossible: list[str]
) -> None:
    for patience, cursors in ((2, [2, 4]), (3, [2, 4, 6])):
        done = labs[0].train(tmp_path / "root", tmp_path / str(patience), overrides=[*impossible, f"select.patience={patience}"])
        assert done["status"] == 1, (patience, done["said"])
        assert "NothingLearnedError" in done["said"], (patience, done["said"])
        found = records(tmp_path / "root")
        assert [record.cursor for record in found] == cursors
        assert all(record.skipped for record in found)
        assert not list((tmp_path / "root/runs" / RUN).glob("checkpoints/*"))
