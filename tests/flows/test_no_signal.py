"""Iterations that teach nothing, with every real part: they are recorded and skipped, and only patience ends the run."""

import json
import re
import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nbrl.agent.trajectory import from_table
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.environments.questions import table_of
from tests.flows import made
from tests.flows.conftest import command
from tests.processes import check_gone, mark

pytestmark = [pytest.mark.e2e, pytest.mark.more]

SMALL = ["rollout.group_size=2", "evaluate.questions=4", "select.drop_rate=1.0", "select.max_rounds=1"]


def train(home: Path, run: str, *overrides: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command(home, run, *SMALL, *overrides), capture_output=True, text=True, timeout=600, env=mark(run), check=False
    )
    check_gone(run)
    assert "Traceback" not in done.stderr, done.stderr[-3000:]
    return done


def records(home: Path, run: str) -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted((home / "storage/runs" / run / "iterations").glob("*/record.json"))]


@pytest.fixture(scope="module")
def impossible(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Questions whose references the policy never gives."""
    folder = tmp_path_factory.mktemp("own")
    for split in ("train", "held_out"):
        rows = [
            {"id": f"{split}-{n}", "question": f"What is {n}?", "answers": [f"#### {n}77"], "ability": "qa", "source": "s"}
            for n in range(8)
        ]
        pq.write_table(table_of(rows), folder / f"{split}.parquet")
    pq.write_table(pa.table({"passage": ["nothing of use"]}), folder / "corpus.parquet")
    return folder


def hard(folder: Path) -> list[str]:
    files = ", ".join(f"{name}: {folder}/{name}.parquet" for name in ("train", "held_out", "corpus"))
    return [f"environments={{own: {{kind: files, {files}}}}}", "rollout.prompts=2", "iterations=9"]


def test_a_run_that_learns_nothing_ends_with_an_exit_code_of_its_own_and_says_why(impossible: Path, tmp_path: Path) -> None:
    first = train(tmp_path, "hard", *hard(impossible), "select.patience=2")
    assert first.returncode == 4, first.stderr[-3000:]
    for words in ("learned nothing", "4 are all wrong", "answered", "example:", "77'", "most likely:", "select.patience"):
        assert words in first.stderr
    assert first.stdout == ""
    assert [record["skipped"] != "" for record in records(tmp_path, "hard")] == [True, True]
    assert [record["cursor"] for record in records(tmp_path, "hard")] == [2, 4]

    again = train(tmp_path, "hard", *hard(impossible), "select.patience=2")
    assert (again.returncode, len(records(tmp_path, "hard"))) == (4, 2)
    assert "most likely:" in again.stderr
    assert "evaluation" not in again.stderr  # nothing was started


@pytest.mark.long
def test_groups_that_are_kept_by_chance_and_earned_the_same_teach_nothing_either(impossible: Path, tmp_path: Path) -> None:
    exact = "reward={qa: 1, format: 0, execution: 0, qa_weights: {f1: 0, exact: 1, answered: 0}}"
    kept = [*hard(impossible), exact, "select.patience=1", "select.drop_rate=0.0"]
    done = train(tmp_path, "kept", *kept)
    assert done.returncode == 4, done.stderr[-3000:]
    assert "earned the same at every step" in done.stderr
    assert not list((tmp_path / "storage/runs/kept").glob("checkpoints/*"))
    fewer = train(tmp_path, "kept", *kept, "iterations=0")
    assert fewer.returncode == 1
    assert "has done 1 iterations and iterations is 0" in fewer.stderr


@pytest.mark.long
def test_more_patience_goes_on_with_the_next_prompts(impossible: Path, tmp_path: Path) -> None:
    for patience in (1, 2):
        done = train(tmp_path, "hard", *hard(impossible), f"select.patience={patience}")
        assert done.returncode == 4
        assert [record["cursor"] for record in records(tmp_path, "hard")] == [2, 4][:patience]


def test_an_iteration_without_signal_is_skipped_and_the_next_one_learns(tmp_path: Path) -> None:
    done = train(tmp_path, "mixed", "rollout.prompts=1", "iterations=6", "seed=1", "checkpoints.keep_last=9")
    assert done.returncode == 0, done.stderr[-3000:]
    found = records(tmp_path, "mixed")
    assert len(found) == 6
    assert {bool(record["skipped"]) for record in found} == {True, False}, "choose a seed with both"
    storage = Storage(StorageSettings(root=f"{tmp_path}/storage"))
    updates = 0
    for iteration, record in enumerate(found):
        table = storage.read_table(made.record(storage, "mixed", iteration).rounds[0].trajectories.path)
        versions = {node.weights_version for t in from_table(table) for node in t.sampled()}
        assert versions == {str(updates)}
        updates += not record["skipped"]
        assert record["checkpoint"].startswith(f"runs/mixed/checkpoints/{updates:06d}-" if updates else "")
    there = sorted(path.name.partition("-")[0] for path in (tmp_path / "storage/runs/mixed/checkpoints").iterdir())
    assert there == [f"{number + 1:06d}" for number in range(updates)]
    made.audited(f"{tmp_path}/storage", "mixed", tmp_path)
    assert len(re.findall("nothing learned: of 1 groups", done.stderr)) == 6 - updates
    assert f"evaluation after {updates:3d} updates" in done.stderr


@pytest.mark.long
def test_a_run_goes_on_with_its_newest_weights_after_an_iteration_that_was_skipped(tmp_path: Path) -> None:
    for iterations in (6, 7):
        done = train(tmp_path, "mixed", "rollout.prompts=1", f"iterations={iterations}", "seed=1")
        assert done.returncode == 0, done.stderr[-3000:]
        assert len(records(tmp_path, "mixed")) == iterations
