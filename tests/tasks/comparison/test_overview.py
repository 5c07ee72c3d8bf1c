"""One row for each run and evaluation, whatever state they are in."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nbrl.flows.cli.commands import app
from nbrl.flows.display.tables import lasted, size
from nbrl.infra.process.identity import identity
from nbrl.infra.storage import Storage
from nbrl.tasks.comparison.overview import RunRow, overview
from nbrl.tasks.runs.run import Run
from tests.tasks.comparison import made


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return made.storage_in(tmp_path)


def only(storage: Storage) -> RunRow:
    (row,) = overview(storage)
    return row


def summed(storage: Storage, run: Run, **summary: Any) -> None:
    storage.write_json(run.layout.summary, {"stalled": ""} | summary)


def test_a_finished_run_has_its_scores_its_size_and_its_logs(storage: Storage, tmp_path: Path) -> None:
    run = made.run(storage, "r", {0: [0, 0, 0, 0], 1: [1, 1, 1, 0], 2: [1, 1, 0, 0]}, [0.1, 0.4])
    summed(storage, run, iterations=2)
    row = only(storage)
    assert (row.state, row.reason, row.iterations, row.planned) == ("finished", "", 2, 2)
    assert (row.first, row.last, row.best, row.rollouts) == (0.0, 0.5, 0.75, 0.4)
    assert row.bytes == sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert (row.recipe, row.logs) == ("tiny-cpu", ".nbrl/logs")
    assert row.began == storage.read_json(storage.list(run.layout.epochs)[0])["started"]


def test_logs_beside_the_run_go_before_those_of_its_home(storage: Storage) -> None:
    run = made.run(storage, "r", {})
    storage.write_bytes(f"{run.layout.folder}/logs/e0001-abcdef/lines.txt", b"x")
    assert only(storage).logs == storage.uri("runs/r/logs")


def test_the_host_of_logs_elsewhere_is_named(storage: Storage) -> None:
    run = made.run(storage, "r", {})
    key = storage.list(run.layout.epochs)[0]
    storage.write_json(key, {**storage.read_json(key), "host": "far"})
    assert only(storage).logs == "far:.nbrl/logs"


def test_a_run_that_is_trained_now_names_the_host(storage: Storage) -> None:
    run = made.run(storage, "r", {0: [0, 0, 0, 0]})
    made.ended(storage, run, process=identity(), host="here")
    lease = storage.read_json(run.layout.lease)
    storage.write_json(run.layout.lease, {**lease, "ended": False, "status": ""})
    assert (only(storage).state, only(storage).host) == ("running", "here")
    place, _, started = identity().rsplit("/", 2)
    epoch = {**lease["epoch"], "process": f"{place}/{os.getpid()}/{int(started) + 1}"}
    storage.write_json(run.layout.lease, {**lease, "ended": False, "status": "", "epoch": epoch})
    assert (only(storage).state, only(storage).reason) == ("died", "its process ended without saying why")


@pytest.mark.parametrize(
    ("summary", "status", "planned", "state"),
    [
        (None, "FAILED", 3, "failed"),
        (None, "KILLED", 3, "stopped"),
        ({"iterations": 1}, "FINISHED", 1, "finished"),
        ({"iterations": 1}, "FAILED", 3, "failed"),
        ({"iterations": 0}, "FINISHED", 1, "stopped"),
        ({"iterations": 1, "stalled": "why", "skipped_in_row": 1}, "FAILED", 3, "learned nothing"),
        ({"iterations": 1, "stalled": "why", "skipped_in_row": 0}, "FINISHED", 3, "ended early"),
    ],
)
def test_every_end_has_its_word(storage: Storage, summary: dict[str, Any] | None, status: str, planned: int, state: str) -> None:
    run = made.run(storage, "r", {}, [0.1], overrides=[f"iterations={planned}"])
    made.ended(storage, run, status, "some reason")
    if summary:
        summed(storage, run, **summary)
    row = only(storage)
    assert (row.state, row.iterations, row.planned) == (state, 1, planned)
    assert row.reason == ("some reason" if state in ("failed", "stopped") else "")


def test_an_evaluation_is_a_row_and_the_newest_comes_first(storage: Storage) -> None:
    made.run(storage, "old", {})
    made.evaluation(storage, "e", [1, 0, 1, 1])
    first, second = overview(storage)
    assert (first.name, first.kind, first.state, first.last) == ("e", "evaluations", "finished", 0.75)
    assert second.name == "old"


@pytest.mark.parametrize("file", ["run.json", "summary.json", "iterations/000001/record.json", "lease.json", "epochs"])
def test_a_damaged_run_is_one_row_and_hides_no_other(storage: Storage, file: str) -> None:
    for name in ("good", "bad"):
        run = made.run(storage, name, {0: [1, 0, 0, 0]}, [0.1, 0.2])
        summed(storage, run, iterations=2)
    bad = f"runs/bad/{file}" if file != "epochs" else storage.list("runs/bad/epochs")[0]
    storage.write_bytes(bad, b"{ not json")
    rows = {row.name: row for row in overview(storage)}
    assert rows["good"].state == "finished"
    assert rows["bad"].iterations == 2
    if file not in ("lease.json", "epochs"):  # a run goes on without these
        assert rows["bad"].state == "damaged"
        assert file in rows["bad"].reason


@pytest.mark.parametrize("folder", ["iterations", "evaluations", "epochs", "run.json", "lease.json", "summary.json"])
@pytest.mark.attack(
    tried="A link, or a pipe, in one run, to hide all others in `nbrl runs`",
    wall="no link is followed; what is no file of a run is damage of that run alone",
    effect="a row that says so",
)
def test_a_link_or_a_pipe_damages_one_run_and_hides_no_other(storage: Storage, folder: str) -> None:
    for name in ("good", "linked", "piped"):
        summed(storage, made.run(storage, name, {0: [1, 0, 0, 0]}, [0.1, 0.2]), iterations=2)
    for name in ("linked", "piped"):
        storage.delete(f"runs/{name}/{folder}")
        path = storage.local_path(f"runs/{name}/{folder}")
        assert path is not None
        path.symlink_to("/proc") if name == "linked" else os.mkfifo(path)
    rows = {row.name: row for row in overview(storage)}
    assert set(rows) == {"good", "linked", "piped"}
    assert rows["good"].state == "finished"
    if "." not in folder:
        assert rows["linked"].state == "damaged"
        assert "is a link" in rows["linked"].reason


@pytest.mark.parametrize("summary", [{"iterations": []}, {"iterations": 2, "stalled": 1, "skipped_in_row": {}}, {}])
def test_a_summary_of_another_form_is_damage_of_one_run(storage: Storage, summary: dict[str, Any]) -> None:
    summed(storage, made.run(storage, "good", {}, [0.1]), iterations=1)
    storage.write_json(made.run(storage, "bad", {}, [0.1]).layout.summary, summary)
    assert {row.name for row in overview(storage)} == {"good", "bad"}


@pytest.mark.parametrize("kind", ["runs", "evaluations"])
def test_what_another_version_made_in_another_format_is_listed_as_not_readable(storage: Storage, kind: str) -> None:
    made.run(storage, "new", {}, [0.1])
    if kind == "runs":
        made.run(storage, "old", {0: [1, 0, 0, 0]}, [0.1])
    else:
        made.evaluation(storage, "old", [1, 0, 1, 1])
    storage.write_json(f"{kind}/old/run.json", {"format": 7, "whatever": "it has"})
    rows = {row.name: row for row in overview(storage)}
    assert (rows["new"].state, rows["old"].state) == ("stopped", "not readable")
    assert rows["old"].reason.endswith("is of format 7, and this version of nbrl reads format 2; use the version that made it")
    printed = CliRunner().invoke(app, ["runs", "--root", storage.settings.root], env={"COLUMNS": "300"})
    assert printed.exit_code == 0, printed.output
    assert "not readable" in printed.stdout


def test_a_lost_identity_is_told(storage: Storage) -> None:
    run = made.run(storage, "r", {})
    storage.delete(run.layout.identity)
    assert only(storage).state == "damaged"
    assert "run.json is missing" in only(storage).reason


def test_the_command_prints_the_rows_or_json(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)  # ages are in both prints
    run = made.run(storage, "a-run-with-a-rather-long-name-that-is-not-cut", {0: [1, 0, 0, 0]}, [0.1])
    made.ended(storage, run, "FAILED", "the [engine] broke")
    printed = CliRunner().invoke(app, ["runs", "--root", storage.settings.root], env={"COLUMNS": "40"})
    assert printed.exit_code == 0, printed.output
    assert run.name in printed.stdout
    assert "the [engine] broke" in " ".join(printed.stdout.split())
    (row,) = json.loads(CliRunner().invoke(app, ["runs", "--json", "--root", storage.settings.root]).stdout)
    assert (row["state"], row["iterations"], row["planned"], row["first"]) == ("failed", 1, 1, 0.25)
    same = CliRunner().invoke(app, ["show", "--root", storage.settings.root], env={"COLUMNS": "40"})
    assert same.stdout == printed.stdout


def test_sizes_and_times_are_short() -> None:
    assert [size(each) for each in (None, 0, 999, 1000, 45_161_397, 3 * 10**15)] == [
        "",
        "0 B",
        "999 B",
        "1.0 kB",
        "45.2 MB",
        "3000.0 TB",
    ]
    assert [lasted(each) for each in (0.4, 59.0, 60.0, 7200.0, 172_800.0)] == ["0 s", "59 s", "1 min", "2 h", "2 d"]
