"""The metrics of a run are in TensorBoard's files once, whoever wrote the files before."""

from pathlib import Path

import pytest

from nbrl.infra.storage import Storage
from nbrl.infra.tensorboard import EventFiles
from nbrl.infra.tracking import TrackingSettings
from nbrl.tasks.runs.scope import Weights
from nbrl.tasks.tracking.curves import Curves, curves_of
from tests.tasks.synced import RUN, begun, evaluated, iteration


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return begun(tmp_path)


def curves(tmp_path: Path, storage: Storage) -> Curves:
    found = curves_of(TrackingSettings(tensorboard=str(tmp_path / "board")), storage, RUN)
    assert found
    return found


def has(tmp_path: Path) -> dict[str, list[tuple[int, float]]]:
    files = EventFiles(tmp_path / "board" / "r")
    return {name: [(step, round(value, 6)) for step, value in files.history(name)] for name in sorted(files.names())}


def test_every_metric_is_there_once_however_many_processes_delivered(storage: Storage, tmp_path: Path) -> None:
    assert curves_of(TrackingSettings(), storage, RUN) is None
    evaluated(storage, Weights(digest="w0"))
    one = curves(tmp_path, storage)
    for number in range(3):
        iteration(storage, number)
        one.catch_up()
        again = curves(tmp_path, storage)
        again.catch_up()
        again.end()
    one.end()
    assert has(tmp_path) == {
        "eval/em": [(0, 0.5), (1, 0.5), (2, 0.5), (3, 0.5)],
        "eval/success": [(0, 0.5), (1, 0.6), (2, 0.7), (3, 0.8)],
        "reward/em": [(1, 0.0), (2, 0.1), (3, 0.2)],
        "time/update": [(1, 1.0), (2, 1.0), (3, 1.0)],
    }


def test_files_that_say_something_else_are_written_anew(storage: Storage, tmp_path: Path) -> None:
    iteration(storage, 0)
    other = EventFiles(tmp_path / "board" / "r")
    other.log_metrics({"reward/em": 0.75}, 1)
    other.log_metrics({"reward/em": 0.75}, 2)
    other.close()
    now = curves(tmp_path, storage)
    now.catch_up()
    now.end()
    assert has(tmp_path)["reward/em"] == [(1, 0.0)]


def test_what_could_not_be_written_is_written_by_the_next_call(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    iteration(storage, 0)
    now = curves(tmp_path, storage)
    with monkeypatch.context() as patched:
        patched.setattr(EventFiles, "log_metrics", lambda *given: (_ for _ in ()).throw(OSError("no space")))
        with pytest.raises(OSError, match="no space"):
            now.catch_up()
    now.catch_up()
    now.end()
    assert has(tmp_path)["time/update"] == [(1, 1.0)]
