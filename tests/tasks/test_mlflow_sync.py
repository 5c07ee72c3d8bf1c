"""A run is delivered to MLflow once, in order, from its storage, whatever happened to the delivery before."""

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.decisive import dotted
from nbrl.tasks.runs.ending import Ending
from nbrl.tasks.runs.recipes import load
from nbrl.tasks.runs.scope import Weights
from nbrl.tasks.tracking.delivery import Delivery
from nbrl.tasks.tracking.mlflow_sync import MlflowSync, _scores
from nbrl.tasks.tracking.parameters import KEYS, parameters
from tests.durability.crash_tracking import FileTracking
from tests.tasks.synced import CONFIG, RUN, begun, evaluated, iteration, summary_of


class DeadError(Exception):
    pass


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return begun(tmp_path)


def books(storage: Storage, tmp_path: Path, step: Callable[[], None] = lambda: None) -> MlflowSync:
    tracking: Any = FileTracking(tmp_path / "mlflow.json", step)
    return MlflowSync(CONFIG, storage, RUN, tracking)


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
        "more/eval/em": [[0, 0.5], [1, 0.5], [2, 0.5]],
        "main/held_out_success": [[0, 0.5], [1, 0.6], [2, 0.7]],
        "more/reward/em": [[1, 0.0], [2, 0.1]],
        "more/time/update": [[1, 1.0], [2, 1.0]],
    }
    assert sorted(found["models"]) == ["000001-r", "000002-r"]
    assert found["of_models"] == {name: ["more/reward/em", "main/held_out_success", "more/eval/em"] for name in found["models"]}
    assert sorted(found["tables"]) == ["evaluations/000000", "evaluations/000001", "evaluations/000002"]
    assert found["tables"]["evaluations/000001"]["reference"] == ["1", "1"]
    assert found["datasets"] == ["world/held_out", "world/train"]
    assert [name for name, _ in found["traces"]] == ["q-1"] * 5  # the right one, for a recipe that asks for one
    assert [tags["iteration"] for _, tags in found["traces"] if "iteration" in tags] == ["0", "1"]
    assert [tags["evaluation"] for _, tags in found["traces"] if "evaluation" in tags] == ["0", "1", "2"]
    assert list(found["assessed"].values()) == [["expected_answer", "reward", "success", "exact_match"]] * 5
    assert found["files"] == ["config.yaml"]
    assert found["tags"]["nbrl.run_id"] == "x"


def test_the_best_and_the_last_checkpoint_have_aliases(storage: Storage, tmp_path: Path) -> None:
    for number in range(3):
        iteration(storage, number)
    storage.delete(RUN.layout.checkpoint(1, "e0001-abcdef"))
    for _ in range(2):
        delivered = books(storage, tmp_path)
        delivered.catch_up()
        delivered.end(Ending("KILLED", "stopped"))
    found = has(tmp_path)
    assert found["deleted"] == ["000001-r"]
    assert [(each["tags"]["nbrl.updates"], each["aliases"]) for each in found["versions"]] == [("3", ["best", "last"])]
    assert (found["status"], found["tags"]["nbrl.ended"]) == ("KILLED", "stopped")
    storage.delete(RUN.layout.checkpoint(3, "e0001-abcdef"))
    delivered = books(storage, tmp_path)
    delivered.catch_up()
    delivered.end(Ending("FINISHED"))
    versions = {each["tags"]["nbrl.updates"]: each for each in has(tmp_path)["versions"]}
    assert versions["3"]["tags"]["nbrl.deleted"] == "true"
    assert versions["2"]["aliases"] == ["best", "last"]


def test_a_storage_that_was_moved_keeps_its_checkpoints(storage: Storage, tmp_path: Path) -> None:
    for number in range(3):
        iteration(storage, number)
    delivered = books(storage, tmp_path)
    delivered.catch_up()
    delivered.end(Ending("FINISHED"))
    moved = Storage(StorageSettings(root=str(tmp_path / "mounted" / "elsewhere")))
    shutil.move(storage.settings.root, moved.settings.root)
    moved.delete(RUN.layout.checkpoint(1, "e0001-abcdef"))
    tracking = FileTracking(tmp_path / "mlflow.json")
    found = tracking.read()  # as if they had been gone for a while
    found["deleted"] = sorted(found["models"])
    found["versions"][0]["tags"]["nbrl.deleted"] = "true"
    tracking.write(found)
    delivered = books(moved, tmp_path)
    delivered.catch_up()
    assert has(tmp_path)["deleted"] == ["000001-r"]
    delivered.end(Ending("FINISHED"))
    (version,) = has(tmp_path)["versions"]
    uri = moved.uri(RUN.layout.checkpoint(3, "e0001-abcdef"))
    assert (version["tags"]["uri"], version["aliases"]) == (uri, ["best", "last"])
    assert "nbrl.deleted" not in version["tags"]
    assert has(tmp_path)["models"]["000003-r"] == uri


@pytest.mark.parametrize("every", [11, pytest.param(1, marks=pytest.mark.more)], ids=["here and there", "every"])
@pytest.mark.parametrize("same", [False, pytest.param(True, marks=pytest.mark.more)], ids=["by another process", "by the same"])
def test_a_delivery_that_is_cut_off_anywhere_is_completed_without_doubles(
    storage: Storage, tmp_path: Path, same: bool, every: int
) -> None:
    evaluated(storage, Weights(digest="w0"))
    evaluated(storage, Weights(updates=1, digest="w1"), {"success/world/qa": 0.7, "world/em": 0.2})
    for number in range(2):
        iteration(storage, number)
    books(storage, tmp_path).catch_up()
    whole, at = has(tmp_path), 1 - every
    while True:
        at += every
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
            for part in ("models", "of_models", "traces", "assessed", "tables", "datasets", "files"):
                assert has(tmp_path)[part] == whole[part], part
        else:
            break
    assert at > 12


def test_a_score_that_one_evaluation_alone_has_is_left_open_in_the_table_of_scores() -> None:
    before = {"em": 0.5, "success": 0.5, "success/world/lost": 0.25, "reward/total": 1.0}
    found = _scores(summary_of(before, {"em": 0.6, "success": 0.7, "success/world/rare": 1.0}))
    assert found == {
        "iterations": [3] * 4,
        "score": ["em", "success", "success/world/lost", "success/world/rare"],
        "before": [0.5, 0.5, 0.25, None],
        "after": [0.6, 0.7, None, 1.0],
    }


def test_iterations_that_were_done_again_are_delivered_to_a_new_run(storage: Storage, tmp_path: Path) -> None:
    for number in range(2):
        iteration(storage, number)
    books(storage, tmp_path).catch_up()
    storage.delete(RUN.layout.iteration(1).record)
    iteration(storage, 1, epoch="e0002-abcdef")
    books(storage, tmp_path).catch_up()
    assert [step for step, _ in has(tmp_path)["metrics"]["more/reward/em"]] == [1, 2]
    assert has(tmp_path)["models"]["000002-r"].endswith("000002-e0002-abcdef")


def test_parameters_are_few_and_name_the_environments() -> None:
    found = parameters(CONFIG)
    assert found["environments.world.kind"] == "world"
    assert (found["update.lr"], found["policy.path"]) == (6e-4, CONFIG.policy.path)
    assert len(found) <= 45
    assert not any(key.startswith(("ray.", "storage.", "tracking.", "home")) for key in found)
    others = [
        "select.retire_at=0.9",
        "update.tis.kind=truncate",
        "pipeline.lag=1",
        "reward.qa_weights.exact=0.7",
        "engine.count=2",
    ]
    changed = parameters(load("tiny-cpu", others)).items() - found.items()
    assert {key: value for key, value in changed if key in {each.partition("=")[0] for each in others}} == {
        "select.retire_at": 0.9,
        "update.tis.kind": "truncate",
        "pipeline.lag": 1,
        "reward.qa_weights.exact": 0.7,
    }


def test_every_parameter_is_a_setting() -> None:
    known = set(dotted(RunConfig))
    assert [key for key in KEYS if key not in known] == []


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
    delivery = Delivery("r", MlflowSync(CONFIG, storage, RUN, tracking), tracking, said.append)
    delivery.start()
    assert tracking.heard.wait(30)
    for _ in range(3):
        delivery.wake()
    while tracking.refused:
        delivery.wake()
    delivery.finish(Ending("FINISHED"))
    assert [words for words in said if "takes nothing" in words and "refused" in words] == said
    assert has(tmp_path)["status"] == "FINISHED"
    assert sorted(has(tmp_path)["models"]) == ["000001-r"]


def test_a_start_that_fails_before_its_services_are_up_is_no_run_in_mlflow_and_ends_one_that_is_there(
    storage: Storage, tmp_path: Path
) -> None:
    said = list[str]()

    def failed() -> None:
        tracking: Any = FileTracking(tmp_path / "mlflow.json")
        Delivery("r", MlflowSync(CONFIG, storage, RUN, tracking), tracking, said.append).finish(Ending("FAILED", "no Ray"))

    failed()
    assert not (tmp_path / "mlflow.json").exists()
    books(storage, tmp_path).catch_up()
    assert has(tmp_path)["status"] == "RUNNING"
    failed()
    assert has(tmp_path)["status"] == "FAILED"
    assert said == []


def test_what_could_not_be_delivered_is_counted_at_the_end(storage: Storage, tmp_path: Path) -> None:
    tracking: Any = Unreachable(tmp_path / "mlflow.json")
    tracking.refused = 10**9
    said: list[str] = []
    for number in range(2):
        iteration(storage, number)
    delivery = Delivery("r", MlflowSync(CONFIG, storage, RUN, tracking), tracking, said.append)
    delivery.start()
    delivery.finish(Ending("FAILED", "broken"))
    assert "2 iterations of run 'r' are not delivered to MLflow" in said[-1]
    assert "`nbrl track r` delivers what is missing" in said[-1]
