"""A run is delivered to MLflow once, in order, from its storage, whatever happened to the delivery before."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nbrl.agent.trajectory import to_table
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.metrics import of
from nbrl.tasks.runs.history import Record
from nbrl.tasks.runs.recipes import load
from nbrl.tasks.runs.results import evaluation_of, keep
from nbrl.tasks.runs.run import Run
from nbrl.tasks.runs.scope import Artifact, Scope, Weights
from nbrl.tasks.tracking.books import Books, flatten
from nbrl.tasks.tracking.delivery import Delivery
from tests.durability.crash_tracking import FileTracking
from tests.flows.test_show import trajectory

RUN = Run(name="r", run_id="x", config_digest="d", seed=0, recipe="tiny", policy="w0")
CONFIG = load("tiny-cpu", ["record.traces=1"])


class DeadError(Exception):
    pass


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(StorageSettings(root=str(tmp_path / "root")))


def iteration(storage: Storage, number: int, epoch: str = "e0001-abcdef") -> None:
    """An iteration with an update and the evaluation of what it made."""
    weights = Weights(updates=number, digest=f"w{number}")
    scope = Scope(run="r", run_id="x", seed=0, epoch=epoch, iteration=number, weights=weights)
    layout = scope.layout.round(0)
    tables = {key: pa.table({"a": [1]}) for key in (layout.prompts, layout.rewards, layout.selection)}
    tables[layout.trajectories] = to_table([trajectory()])
    artifacts = [Artifact(path=key, digest=storage.write_table(key, table)) for key, table in tables.items()]
    record = Record(
        iteration=number,
        cursor=1,
        checkpoint=RUN.layout.checkpoint(number + 1, epoch),
        artifacts=artifacts,
        metrics={"reward/em": 0.1 * number, "time/update": 1.0},
        run_id="x",
        epoch=epoch,
        finished=1000.0 + number,
        weights=f"w{number + 1}",
    )
    storage.create_json(scope.layout.record, record.model_dump(mode="json"))
    evaluated(storage, Weights(updates=number + 1, digest=f"w{number + 1}"))


def evaluated(storage: Storage, policy: Weights) -> None:
    if evaluation_of(storage, RUN, policy) is not None:
        return
    scope = Scope(run="r", run_id="x", seed=0, epoch="e0001-abcdef", iteration=0, weights=policy, stage="evaluation")
    keep(storage, scope, "evaluate", [policy.digest], Artifact(path="", digest="", metrics=of({"em": 0.5}, "last")))


def books(storage: Storage, tmp_path: Path, step: Callable[[], None] = lambda: None) -> Books:
    tracking: Any = FileTracking(tmp_path / "mlflow.json", step)
    return Books(CONFIG, storage, RUN, tracking)


def has(tmp_path: Path) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((tmp_path / "mlflow.json").read_text())
    return read


def test_everything_is_delivered_once_however_often_and_by_whom(storage: Storage, tmp_path: Path) -> None:
    evaluated(storage, Weights(digest="w0"))
    for number in range(2):
        iteration(storage, number)
        for _ in range(2):
            books(storage, tmp_path).catch_up()
    found = has(tmp_path)
    assert found["metrics"] == {
        "eval/em": [[0, 0.5], [1, 0.5], [2, 0.5]],
        "reward/em": [[1, 0.0], [2, 0.1]],
        "time/update": [[1, 1.0], [2, 1.0]],
    }
    assert sorted(found["models"]) == ["r-000001", "r-000002"]
    assert [tags["iteration"] for _, tags in found["traces"]] == ["0", "1"]


@pytest.mark.parametrize("same", [False, True], ids=["by another process", "by the same"])
def test_a_delivery_that_is_cut_off_anywhere_is_completed_without_doubles(storage: Storage, tmp_path: Path, same: bool) -> None:
    evaluated(storage, Weights(digest="w0"))
    for number in range(2):
        iteration(storage, number)
    books(storage, tmp_path).catch_up()
    whole, at = has(tmp_path), 0
    while True:
        at += 1
        (tmp_path / "mlflow.json").unlink()
        left = iter(range(at))

        died: list[int] = []

        def step(left: Any = left, died: Any = died) -> None:
            if next(left, None) is None and not died:
                died.append(1)
                raise DeadError

        first = books(storage, tmp_path, step)
        try:
            first.catch_up()
        except DeadError:
            (first if same else books(storage, tmp_path)).catch_up()
            assert has(tmp_path)["metrics"] == whole["metrics"]
            assert (has(tmp_path)["models"], has(tmp_path)["traces"]) == (whole["models"], whole["traces"])
        else:
            break
    assert at > 12


def test_iterations_that_were_done_again_are_delivered_to_a_new_run(storage: Storage, tmp_path: Path) -> None:
    for number in range(2):
        iteration(storage, number)
    books(storage, tmp_path).catch_up()
    storage.delete(RUN.layout.iteration(1).record)
    iteration(storage, 1, epoch="e0002-abcdef")
    books(storage, tmp_path).catch_up()
    assert [step for step, _ in has(tmp_path)["metrics"]["reward/em"]] == [1, 2]
    assert has(tmp_path)["models"]["r-000002"].endswith("000002-e0002-abcdef")


def test_settings_are_dotted_keys() -> None:
    assert flatten({"a": {"b": {"c": 1}, "d": [2]}, "e": None}) == {"a.b.c": 1, "a.d": [2], "e": None}


class Unreachable(FileTracking):
    """Answers from the third call on."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.refused, self.heard = 3, threading.Event()

    def start_run(self, *given: Any) -> str:
        if self.refused:
            self.refused -= 1
            self.heard.set()
            raise ConnectionError("refused")
        return super().start_run(*given)


def test_a_dead_server_is_one_warning_and_nothing_waits_for_it(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nbrl.tasks.tracking.delivery.RETRY_S", 0.01)
    tracking: Any = Unreachable(tmp_path / "mlflow.json")
    said: list[str] = []
    iteration(storage, 0)
    delivery = Delivery("r", Books(CONFIG, storage, RUN, tracking), tracking, said.append)
    delivery.start()
    assert tracking.heard.wait(30)
    for _ in range(3):
        delivery.wake()
    while tracking.refused:
        delivery.wake()
    delivery.finish("FINISHED")
    assert [words for words in said if "takes nothing" in words and "refused" in words] == said
    assert has(tmp_path)["status"] == "FINISHED"
    assert sorted(has(tmp_path)["models"]) == ["r-000001"]


def test_what_could_not_be_delivered_is_counted_at_the_end(storage: Storage, tmp_path: Path) -> None:
    tracking: Any = Unreachable(tmp_path / "mlflow.json")
    tracking.refused = 10**9
    said: list[str] = []
    for number in range(2):
        iteration(storage, number)
    delivery = Delivery("r", Books(CONFIG, storage, RUN, tracking), tracking, said.append)
    delivery.start()
    delivery.finish("FAILED")
    assert "2 iterations of run 'r' are not delivered to MLflow" in said[-1]
    assert "`nbrl track r` delivers what is missing" in said[-1]
