"""The real MLflow, on SQLite."""

import time
from pathlib import Path

import httpx
import pytest

from nbrl.infra.errors import ServerError
from nbrl.infra.home import Home
from nbrl.infra.tracking import ENDED, KIND, Tracking, TrackingSettings
from nbrl.infra.tracking_address import Machine
from nbrl.infra.tracking_models import LoggedModel
from nbrl.infra.tracking_traces import Assessments, Dataset, Span
from nbrl.infra.tracking_ui import ui

# MLflow asks git where it is.
pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home(tmp_path_factory.mktemp("home"))


def test_a_run_is_tracked_and_resumed(home: Home, tmp_path: Path) -> None:
    tracking = Tracking(TrackingSettings(), home)
    params = {f"p{number}": number for number in range(150)}
    run_id = tracking.start_run("it's a run", params, {"kind": "test"}, {"mlflow.user": "me"}, started=1000.0)
    points = {"em": 0.25, "loss": 1.5, "undefined": float("nan"), "endless": float("inf"), "third": 1 / 3}
    tracking.log_metrics(points, 1, 1500.0)
    tracking.log_table("evaluation", {"question": ["a", "b"], "em": [0.0, 1.0]})
    (tmp_path / "note.txt").write_text("hello")
    tracking.log_file(tmp_path / "note.txt")
    tracking.end("FAILED", "the disk is full", 2000.0)

    failed = tracking.client.get_run(run_id)
    assert (failed.info.status, failed.data.tags[ENDED]) == ("FAILED", "the disk is full")
    assert (failed.info.start_time, failed.info.end_time) == (1_000_000, 2_000_000)
    resumed = Tracking(TrackingSettings(), home)
    assert resumed.start_run("it's a run", params | {"p0": "changed", "new": "x" * 10_000}, {}) == run_id
    assert ENDED not in resumed.client.get_run(run_id).data.tags
    resumed.log_metrics(points, 1, 1500.0)
    resumed.log_metrics({"em": 0.75}, step=2)
    resumed.log_table("evaluation", {"question": ["c"], "em": [1.0]})
    resumed.end()

    run = resumed.client.get_run(run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params["p0"] == "0"
    assert len(run.data.params) == 151
    assert (run.data.tags["kind"], run.data.tags["mlflow.user"]) == ("test", "me")
    assert [(point.step, point.value) for point in resumed.client.get_metric_history(run_id, "em")] == [(1, 0.25), (2, 0.75)]
    assert [len(resumed.client.get_metric_history(run_id, name)) for name in points] == [2, 1, 1, 1, 1]
    assert {file.path for file in resumed.client.list_artifacts(run_id)} == {"evaluation.json", "note.txt"}
    assert len(resumed.client.load_table(resumed.experiment_id, "evaluation.json", [run_id])) == 3
    assert (home.mlflow / "artifacts").is_dir()


def test_an_experiment_opens_on_training_runs_unless_somebody_chose_otherwise(home: Home) -> None:
    kinds = {}
    for kind in ("", "genai_development_inferred", "genai_development", "new"):
        tracking = Tracking(TrackingSettings(experiment=f"of kind {kind}"), home)
        if kind != "new":
            tracking.client.create_experiment(f"of kind {kind}", tags={KIND: kind} if kind else {})
        kinds[kind] = tracking.client.get_experiment(tracking.experiment_id).tags[KIND]
    trains = "custom_model_development"
    assert kinds == {"": trains, "genai_development_inferred": trains, "genai_development": "genai_development", "new": trains}


def test_an_experiment_that_somebody_deleted_is_restored(home: Home) -> None:
    first = Tracking(TrackingSettings(), home)
    first.start_run("a", {}, {"k": "1"})
    first.end()
    first.client.delete_experiment(first.experiment_id)
    again = Tracking(TrackingSettings(), home)
    again.start_run("b", {}, {"k": "2"})
    again.end()
    assert again.experiment_id == first.experiment_id


def test_checkpoints_are_logged_models_and_versions(home: Home) -> None:
    tracking = Tracking(TrackingSettings(), home)
    run_id = tracking.start_run("v1.5", {}, {})
    model = tracking.models.log("000003-v1.5", "s3://bucket/checkpoints/3", 3, {"nbrl.updates": "3"})
    for _ in range(2):
        tracking.log_metrics({"em": 0.5}, 3, 1500.0, model)
    tracking.models.place(model, model.uri, deleted=True)
    logged = tracking.client.get_logged_model(model.id)
    assert (logged.name, logged.tags["uri"], logged.source_run_id) == ("000003-v1_5", "s3://bucket/checkpoints/3", run_id)
    assert [(metric.key, metric.value, metric.step) for metric in logged.metrics] == [("em", 0.5, 3)]
    assert tracking.history("em") == [(3, 0.5)]
    outputs = tracking.client.get_run(run_id).outputs.model_outputs
    assert [(each.model_id, each.step) for each in outputs] == [(model.id, 3)]
    assert [(step, each.id, each.deleted) for step, each in tracking.models.of_run().items()] == [(3, model.id, True)]

    assert tracking.models.versions("nbrl-r") == []
    numbers = [tracking.models.register("nbrl-r", model, {"nbrl.updates": "3"}, "about") for _ in range(2)]
    tracking.models.set_alias("nbrl-r", "best", numbers[0])
    tracking.models.set_alias("nbrl-r", "best", numbers[1])
    tracking.models.tag_version("nbrl-r", numbers[0], "nbrl.success", "0.5")
    versions = {version.number: version for version in tracking.models.versions("nbrl-r")}
    assert [versions[number].aliases for number in numbers] == [set(), {"best"}]
    assert versions[numbers[0]].tags == {"uri": "s3://bucket/checkpoints/3", "nbrl.updates": "3", "nbrl.success": "0.5"}


def test_a_checkpoint_may_move_and_come_back(home: Home) -> None:
    tracking = Tracking(TrackingSettings(), home)
    tracking.start_run("moved", {}, {})
    model = tracking.models.log("000003-moved", "/old/3", 3, {})
    tracking.models.register("nbrl-moved", model, {}, "at /old/3")
    for uri, deleted in (("/old/3", True), ("/new/3", False)):
        tracking.models.place(tracking.models.of_run()[3], uri, deleted)
        (version,) = tracking.models.versions("nbrl-moved")
        tracking.models.place_version("nbrl-moved", version, uri, deleted, f"at {uri}")
        assert tracking.models.of_run()[3] == LoggedModel(model.id, uri, deleted)
        (version,) = tracking.models.versions("nbrl-moved")
        assert version.tags == {"uri": uri} | ({"nbrl.deleted": "true"} if deleted else {})
        assert tracking.client.get_model_version("nbrl-moved", version.number).description == f"at {uri}"


def test_datasets_are_inputs_once(home: Home) -> None:
    tracking = Tracking(TrackingSettings(), home)
    run_id = tracking.start_run("datasets", {}, {})
    given = [Dataset("world/train", "a" * 64, "/data/train.parquet", 3, "training")]
    for _ in range(2):
        tracking.datasets.log(given)
    (found,) = tracking.client.get_run(run_id).inputs.dataset_inputs
    assert (found.dataset.digest, found.dataset.profile) == ("a" * 12, '{"num_rows": 3}')
    assert [(tag.key, tag.value) for tag in found.tags] == [("mlflow.data.context", "training")]
    assert tracking.datasets.names() == {"world/train"}


def test_the_machine_is_watched_until_the_run_ends(home: Home) -> None:
    tracking = Tracking(TrackingSettings(), home)
    run_id = tracking.start_run("machine", {}, {})
    tracking.machine = Machine(tracking, 0.05)
    tracking.machine.watch()
    name = "system/cpu_utilization_percentage"
    end = time.monotonic() + 60
    while name not in tracking.client.get_run(run_id).data.metrics and time.monotonic() < end:
        time.sleep(0.1)
    tracking.end()
    steps = [point.step for point in tracking.client.get_metric_history(run_id, name)]
    assert steps
    assert steps == sorted(set(steps))


def test_traces(home: Home) -> None:
    tracking = Tracking(TrackingSettings(), home)
    tracking.start_run("traces", {}, {})
    now = time.time_ns()
    spans = [
        Span("generate", "LLM", now, now + 2_000_000, {"tokens": 12}, {"text": "print(1)"}, (12, 4)),
        Span("cell", "TOOL", now + 2_000_000, now + 5_000_000, {"code": "print(1)"}, {"output": "1"}),
    ]
    tags = {"status": "answered"}
    logged = tracking.traces.log("question", {"question": "one?"}, {"answer": "1"}, spans, tags)
    tracking.traces.assess(logged, Assessments({"expected_answer": "1"}))
    there = tracking.traces.there(tags)["question"]
    tracking.traces.assess(there, Assessments({"expected_answer": "1"}, {"reward": 0.75, "exact_match": True}))
    tracking.end()
    trace = tracking.client.get_trace(logged.id)
    assert trace.info.tags["status"] == "answered"
    assert trace.info.execution_duration == 5
    assert trace.info.token_usage == {"input_tokens": 12, "output_tokens": 4, "total_tokens": 16}
    found = {each.name: (each.expectation or each.feedback).value for each in trace.info.assessments}
    assert found == {"expected_answer": "1", "reward": 0.75, "exact_match": True}
    assert len(trace.info.assessments) == 3
    root, *rest = sorted(trace.data.spans, key=lambda span: (span.parent_id is not None, span.start_time_ns))
    assert (root.inputs, root.outputs) == ({"question": "one?"}, {"answer": "1"})
    assert [(span.name, span.span_type, span.end_time_ns - span.start_time_ns) for span in rest] == [
        ("generate", "LLM", 2_000_000),
        ("cell", "TOOL", 3_000_000),
    ]


def test_other_database_and_experiment(home: Home, tmp_path: Path) -> None:
    settings = TrackingSettings(uri=f"sqlite:///{home.mlflow}/mlflow.db", artifacts=tmp_path.as_uri(), experiment="other")
    tracking = Tracking(settings, home)
    tracking.start_run("run", {}, {})
    tracking.log_table("t", {"a": [1]})
    tracking.end()
    assert list(tmp_path.rglob("t.json"))


def test_nothing_before_start_run(home: Home) -> None:
    tracking = Tracking(TrackingSettings(), home)
    with pytest.raises(ServerError, match="before start_run"):
        tracking.log_metrics({"a": 1}, 1)
    tracking.end()


def test_unusable_database(home: Home) -> None:
    with pytest.raises(ServerError, match="cannot be used"):
        Tracking(TrackingSettings(uri="sqlite:////proc/none/mlflow.db"), home).start_run("run", {}, {})


@pytest.mark.more
def test_pages(tmp_path: Path) -> None:
    home = Home(tmp_path)
    page = ui(home)
    try:
        assert page.alive
        assert "MLflow" in httpx.get(page.url, trust_env=False).text
        assert page.runs == page.url  # there is no experiment yet
        experiment = Tracking(TrackingSettings(uri=page.url), home).experiment_id
        assert page.runs == f"{page.url}/#/experiments/{experiment}/runs?workflowType=machine_learning"
        assert httpx.get(page.url, trust_env=False, headers={"Host": "evil.example"}).status_code == 403
    finally:
        page.stop()
    assert not page.alive
