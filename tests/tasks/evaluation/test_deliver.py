"""A finished evaluation in the real MLflow: what its tags say, and below which run it is."""

from pathlib import Path

import pytest

from nbrl.infra.home import Home
from nbrl.infra.storage import Storage
from nbrl.infra.tracking import Tracking
from nbrl.tasks.evaluation.deliver import deliver
from nbrl.tasks.evaluation.summary import read
from nbrl.tasks.layout.runs import EvaluationLayout
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.tracking.evaluations import EVALUATION
from nbrl.tasks.tracking.mlflow_sync import MlflowSync
from nbrl.tasks.tracking.mlflow_sync import deliver as deliver_run
from tests.tasks.comparison.made import ended, evaluation
from tests.tasks.synced import CONFIG, RUN, begun, iteration

# MLflow asks git where it is.
pytestmark = pytest.mark.process

NAME = "batch"


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    return CONFIG.model_copy(update={"home": str(tmp_path / "home")})


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    """With an iteration of a run, and an evaluation of what it made."""
    storage = begun(tmp_path)
    iteration(storage, 0)
    made = evaluation(storage, NAME, [1.0, 0.0, 0.0, 0.0])
    (key,) = storage.list(made.layout.epochs)
    said = {"commit": "c0ffee", "command": "nbrl evaluate --model r@1", "user": "ada", "host": "here", "started": 1000.0}
    storage.write_json(key, {**storage.read_json(key), **said})
    ended(storage, made)
    summary = read(storage, NAME)
    assert summary
    subject = summary.subject.model_copy(update={"run": "r", "run_id": "x", "updates": 1, "name": "r@1"})
    changed = summary.model_copy(update={"subject": subject})
    storage.write_json(EvaluationLayout(NAME).summary, changed.model_dump(mode="json"))
    return storage


def tags(to: Tracking) -> dict[str, str]:
    return dict(to.client.get_run(to.id_of(NAME, EVALUATION)).data.tags)


def test_the_tags_of_an_evaluation_say_who_began_it_where_and_how(storage: Storage, config: RunConfig) -> None:
    deliver(storage, config, NAME)
    to = Tracking(config.tracking, Home(config.home))
    found = tags(to)
    assert (found["mlflow.user"], found["nbrl.host"], found["nbrl.recipe"], found["nbrl.model"]) == (
        "ada",
        "here",
        "tiny-cpu",
        "r@1",
    )
    assert (found["mlflow.source.git.commit"], found["nbrl.command"]) == ("c0ffee", "nbrl evaluate --model r@1")
    assert found["nbrl.version"]
    assert to.client.get_run(to.id_of(NAME, EVALUATION)).info.start_time == 1_000_000


def test_an_evaluation_that_mlflow_has_lost_is_delivered_again(storage: Storage, config: RunConfig) -> None:
    deliver(storage, config, NAME)
    to = Tracking(config.tracking, Home(config.home))
    first = to.id_of(NAME, EVALUATION)
    deliver(storage, config, NAME)
    assert to.id_of(NAME, EVALUATION) == first
    assert to.find_run(NAME, EVALUATION)
    to.start_over()  # as when MLflow's database was lost
    deliver(storage, config, NAME)
    assert to.id_of(NAME, EVALUATION) not in ("", first)


def test_an_evaluation_is_a_run_below_the_one_that_it_evaluates(storage: Storage, config: RunConfig) -> None:
    to = Tracking(config.tracking, Home(config.home))
    parent = to.start_run("r", {}, {"nbrl.run_id": "x"})
    to.end()
    deliver(storage, config, NAME)
    summary, first = read(storage, NAME), to.id_of(NAME, EVALUATION)
    assert summary
    run = to.client.get_run(first)
    assert run.data.tags["mlflow.parentRunId"] == parent
    assert run.data.tags["mlflow.note.content"].startswith("#")
    shown = {f"more/eval/{name}": value for name, value in summary.metrics.items() if name != "success"}
    assert run.data.metrics == shown | {"main/held_out_success": summary.metrics["success"]}
    assert (run.data.params["model"], run.info.status) == ("r@1", "FINISHED")
    assert {"evaluation.json", "report.md"} <= {file.path for file in to.client.list_artifacts(first)}
    assert len(to.client.load_table(to.experiment_id, "evaluation.json", [first])) == summary.trajectories

    other = summary.model_copy(update={"metrics": summary.metrics | {"f1": 1.0}})
    storage.write_json(EvaluationLayout(NAME).summary, other.model_dump(mode="json"))
    deliver(storage, config, NAME)
    assert to.client.get_run(first).info.lifecycle_stage == "deleted"
    assert to.client.get_run(to.id_of(NAME, EVALUATION)).data.metrics["more/eval/f1"] == 1.0


@pytest.mark.more
def test_an_evaluation_is_put_below_its_run_when_that_is_delivered_later(storage: Storage, config: RunConfig) -> None:
    deliver(storage, config, NAME)
    to = Tracking(config.tracking, Home(config.home))
    assert "mlflow.parentRunId" not in tags(to)
    for _ in range(2):
        deliver_run(MlflowSync(config, storage, RUN, to), to)
        assert to.find_run("r", {"nbrl.run_id": "x"})
        assert tags(to)["mlflow.parentRunId"] == to.run_id
        to.start_over()  # as when iterations were done again: the next delivery makes another run
