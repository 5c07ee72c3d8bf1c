"""The metrics of a run are in TensorBoard's files, and in any other sink, once, whatever process delivered them before."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from nbrl.infra.storage import Storage
from nbrl.infra.tensorboard import EventFiles
from nbrl.infra.tracking import TrackingSettings
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.recipes import load
from nbrl.tasks.runs.scope import Weights
from nbrl.tasks.tracking.delivery import fill
from nbrl.tasks.tracking.names import shown
from nbrl.tasks.tracking.parameters import parameters
from nbrl.tasks.tracking.sinks import SinkDelivery, sinks_of
from tests.tasks.synced import CONFIG, RUN, begun, evaluated, iteration


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return begun(tmp_path)


def board(tmp_path: Path, storage: Storage) -> SinkDelivery:
    (found,) = sinks_of(tracked(tensorboard=str(tmp_path / "board")), storage, RUN)
    return found


def tracked(**settings: object) -> RunConfig:
    return CONFIG.model_copy(update={"tracking": TrackingSettings(**settings)})


def has(tmp_path: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

    found: dict[str, list[tuple[int, float]]] = {}
    for path in sorted((tmp_path / "board" / "r").iterdir()):
        for event in LegacyEventFileLoader(str(path)).Load():
            for value in event.summary.value:
                found.setdefault(value.tag, []).append((event.step, round(value.simple_value, 6)))
    return {name: found[name] for name in sorted(found)}


def test_of_environments_and_abilities_success_alone_is_shown_and_the_main_metrics_come_first() -> None:
    of_status = {"rollout/status/answered": 1.0, "rollout/status/answered/world": 1.0, "rollout/status/answered/answered": 1.0}
    of_em = {"reward/em": 0.5, "reward/em/world": 0.5, "reward/em/world/two_hop": 0.5}
    of_evaluation = {"eval/answered/world": 1.0, "eval/success/world": 1.0}  # whose whole has another name
    of_success = {"reward/success": 0.5, "reward/success/world": 0.5, "reward/success/world/two_hop": 0.5}
    assert list(shown(of_em | of_status | of_success | of_evaluation, {"world", "answered"})) == [
        "main/success",
        "more/reward/em",
        "more/rollout/status/answered",
        "more/reward/success/world",
        "more/reward/success/world/two_hop",
        "more/eval/success/world",
    ]


def test_every_metric_is_there_once_however_many_processes_delivered(storage: Storage, tmp_path: Path) -> None:
    assert sinks_of(tracked(), storage, RUN) == []
    evaluated(storage, Weights(digest="w0"))
    for number in range(3):
        iteration(storage, number)
        one = board(tmp_path, storage)
        one.catch_up()  # and is killed
    again = board(tmp_path, storage)
    again.catch_up()
    again.catch_up()
    again.sink.end()
    assert has(tmp_path) == {
        "more/eval/em": [(0, 0.5), (1, 0.5), (2, 0.5), (3, 0.5)],
        "main/held_out_success": [(0, 0.5), (1, 0.6), (2, 0.7), (3, 0.8)],
        "more/reward/em": [(1, 0.0), (2, 0.1), (3, 0.2)],
        "more/time/update": [(1, 1.0), (2, 1.0), (3, 1.0)],
    }


def test_a_file_of_another_run_of_the_name_is_replaced_and_other_files_stay(storage: Storage, tmp_path: Path) -> None:
    iteration(storage, 0)
    other = EventFiles(tmp_path / "board" / "r")
    other.begin()
    other.log_metrics({"more/reward/em": 0.75}, 2, 1.0)
    other.end()
    (tmp_path / "board/r/notes.txt").write_text("of a user")
    now = board(tmp_path, storage)
    now.catch_up()
    now.sink.end()
    (tmp_path / "board/r/notes.txt").unlink()
    assert has(tmp_path)["more/reward/em"] == [(1, 0.0)]


def test_weights_and_biases_gets_the_parameters_that_mlflow_gets(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[object, ...]] = []
    monkeypatch.setattr("nbrl.tasks.tracking.sinks.WandbRuns", lambda *given: made.append(given) or Dashboard())
    config = tracked(wandb={"project": "p", "mode": "online"})
    (found,) = sinks_of(config, storage, RUN)
    assert made == [(config.tracking.wandb, "r", parameters(config))]
    found.catch_up()


def test_no_password_of_an_address_is_a_parameter() -> None:
    settings = "{kind: own, place: 'antigravity:Tasks', settings: {at: ['https://user:hunter2@example.org/a']}}"
    given = parameters(load("tiny-cpu", [f"environments.odd={settings}"]))
    assert given["seed"] == 0
    assert given["environments.odd.settings"] == {"at": ["https://user:***@example.org/a"]}
    assert "hunter2" not in str(given)


class Dashboard:
    """A second kind of sink. It fails now and then."""

    name = "the dashboard"

    def __init__(self, failures: int = 0) -> None:
        self.failures, self.begins, self.ended = failures, 0, 0
        self.points: list[tuple[int, dict[str, float]]] = []

    def begin(self) -> None:
        self.begins += 1
        self.points = []

    def log_metrics(self, metrics: Mapping[str, float], step: int, time_s: float) -> None:
        if self.points and self.failures:
            self.failures -= 1
            raise OSError("no space")
        self.points.append((step, dict(metrics)))

    def end(self) -> None:
        self.ended += 1


def test_another_sink_gets_each_step_once_in_order_and_all_again_after_a_failure(storage: Storage) -> None:
    evaluated(storage, Weights(digest="w0"))
    iteration(storage, 0)
    sink, warnings = Dashboard(failures=1), list[str]()
    delivery = SinkDelivery(storage, RUN, sink)
    for last in (False, False, True):
        fill([delivery], lambda *words: warnings.append(" ".join(words)), last=last)
    iteration(storage, 1)
    fill([delivery], lambda *words: warnings.append(" ".join(words)))
    assert warnings == ["the dashboard cannot be written: no space"]
    assert (sink.begins, sink.ended) == (2, 2)
    assert [step for step, _ in sink.points] == [0, 1, 1, 2, 2]
    assert [sorted(metrics) for step, metrics in sink.points if step == 2] == [
        ["more/reward/em", "more/time/update"],
        ["main/held_out_success", "more/eval/em"],
    ]
