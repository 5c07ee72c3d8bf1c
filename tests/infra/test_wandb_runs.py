"""W&B's files have every point at its own step, and its process ends with the run, whatever happens to it."""

import json
import os
import signal
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from nbrl.infra import wandb_runs
from nbrl.infra.errors import ServerError
from nbrl.infra.process.child import free_port
from nbrl.infra.wandb_runs import WandbRuns, WandbSettings
from tests.processes import KEY, check_gone, mark, marked

pytestmark = pytest.mark.process

BLOCK, HEAD, FILE_HEAD = 32_768, 7, 7


@pytest.fixture(autouse=True)
def processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Mark what a test starts, which is gone after it; W&B finds no key of this machine and no settings."""
    for name in os.environ:
        if name.startswith("WANDB_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setenv(KEY, mark("wandb")[KEY])
    yield
    check_gone("wandb")


def offline(tmp_path: Path, **parameters: object) -> WandbRuns:
    return WandbRuns(WandbSettings(project="p", mode="offline", folder=str(tmp_path / "files")), "r", parameters)


def records(tmp_path: Path) -> Iterator[Any]:
    """The records of the one run that is below the folder."""
    messages = import_module("wandb.proto.wandb_internal_pb2")
    (file,) = (tmp_path / "files" / "r").glob("wandb/offline-run-*/*.wandb")
    content, place, whole = file.read_bytes(), FILE_HEAD, b""
    while place < len(content):
        if BLOCK - place % BLOCK < HEAD:
            place += BLOCK - place % BLOCK
            continue
        size, kind = int.from_bytes(content[place + 4 : place + 6], "little"), content[place + 6]
        whole += content[place + HEAD : place + HEAD + size]
        place += HEAD + size
        if kind in (1, 4):  # complete, or the last part of one
            yield messages.Record.FromString(whole)
            whole = b""


def points(tmp_path: Path) -> list[dict[str, float]]:
    found = [record.history for record in records(tmp_path) if record.WhichOneof("record_type") == "history"]
    rows = [{item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in row.item} for row in found]
    return [{name: value for name, value in row.items() if name not in ("_step", "_runtime", "_wandb")} for row in rows]


def test_an_evaluation_that_comes_after_later_steps_is_kept_at_its_own(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    variables = dict(os.environ)
    sink = offline(tmp_path, **{"update.lr": 0.5})
    sink.begin()
    for step in (1, 2, 3):
        sink.log_metrics({"main/success": step / 10}, step, 1000.0 + step)
    sink.log_metrics({"main/held_out_success": 0.75}, 1, 1009.0)
    sink.end()
    assert points(tmp_path) == [
        {"main/success": 0.1, "iteration": 1, "_timestamp": 1001},
        {"main/success": 0.2, "iteration": 2, "_timestamp": 1002},
        {"main/success": 0.3, "iteration": 3, "_timestamp": 1003},
        {"main/held_out_success": 0.75, "iteration": 1, "_timestamp": 1009},
    ]
    drawn_by = {record.metric.glob_name or record.metric.name: record.metric.step_metric for record in records(tmp_path)}
    assert drawn_by["*"] == "iteration"
    assert capfd.readouterr() == ("", "")
    assert [signal.getsignal(number) for number in signal.valid_signals()] == handlers
    assert dict(os.environ) == variables


def test_nothing_but_metrics_parameters_and_names_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_NOTES", "of another run")
    sink = offline(tmp_path, seed=7)
    sink.begin()
    sink.end()
    (run,) = (record.run for record in records(tmp_path) if record.WhichOneof("record_type") == "run")
    given = {item.key: item.value_json for item in run.config.update}
    assert given.pop("seed") == "7"
    assert set(given) <= {"_wandb"}
    assert (run.project, run.display_name, run.run_group, run.host, run.notes) == ("p", "r", "r", "", "")
    assert not run.git.remote_url
    said = {field.name for field, _ in run.telemetry.ListFields()}
    assert said == {"feature", "python_version", "cli_version", "platform"}  # of W&B's package, by itself
    kinds = {record.WhichOneof("record_type") for record in records(tmp_path)}
    assert kinds == {"header", "run", "telemetry", "metric", "summary", "exit"}
    assert not [*(tmp_path / "files").rglob("files/*")]


@pytest.mark.more
def test_a_run_that_begins_again_has_all_its_steps_once(tmp_path: Path) -> None:
    killed = offline(tmp_path)
    killed.begin()
    killed.log_metrics({"main/success": 0.5}, 9, 1.0)
    for pid in marked("wandb"):
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(ServerError, match="its process has ended"):
        killed.log_metrics({"main/success": 0.5}, 10, 1.0)
    check_gone("wandb")
    again = offline(tmp_path)
    again.begin()
    again.log_metrics({"main/success": 0.1}, 1, 1.0)
    again.begin()
    again.log_metrics({"main/success": 0.2}, 2, 1.0)
    again.end()
    again.end()
    assert [row["iteration"] for row in points(tmp_path)] == [2]


def test_a_process_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sink = offline(tmp_path)
    sink.begin()
    monkeypatch.setattr(wandb_runs, "ANSWER_S", 0.2)
    for pid in marked("wandb")[1:]:  # all but the keeper
        os.kill(pid, signal.SIGSTOP)
    with pytest.raises(ServerError, match=r"does not answer within 0\.2 seconds"):
        sink.log_metrics({"main/success": 0.1}, 1, 1.0)
    check_gone("wandb")


@pytest.mark.parametrize(("key", "words"), [("", "No API key configured"), ("k" * 40, "CommError: Timed out|does not answer")])
def test_a_server_that_does_not_answer_or_lacks_a_key_is_an_error(key: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("WANDB_API_KEY", key)
    if key:
        monkeypatch.setattr(wandb_runs, "BEGIN_S", 1.0)
    sink = WandbRuns(WandbSettings(project="p", mode="online"), "r", {})
    with pytest.raises(ServerError, match=words):
        sink.begin()
    sink.end()
