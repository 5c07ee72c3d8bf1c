"""The real MLflow, on SQLite."""

import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from nbrl.infra.errors import ServerError
from nbrl.infra.home import Home
from nbrl.infra.tracking import Span, Tracking, TrackingSettings
from nbrl.infra.tracking_ui import ui

# MLflow asks git where it is.
pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    return Home(tmp_path_factory.mktemp("home"))


def client(tracking: Tracking) -> Any:
    return tracking._client


def test_a_run_is_tracked_and_resumed(home: Home, tmp_path: Path) -> None:
    tracking = Tracking(TrackingSettings(), home)
    params = {f"p{number}": number for number in range(150)}
    run_id = tracking.start_run("it's a run", params, {"kind": "test"})
    tracking.log_metrics({"em": 0.25, "loss": 1.5}, step=1)
    tracking.log_table("evaluation", {"question": ["a", "b"], "em": [0.0, 1.0]})
    (tmp_path / "note.txt").write_text("hello")
    tracking.log_file(tmp_path / "note.txt")
    tracking.end("FAILED")

    resumed = Tracking(TrackingSettings(), home)
    assert resumed.start_run("it's a run", params | {"p0": "changed", "new": "x" * 10_000}, {}) == run_id
    resumed.log_metrics({"em": 0.75}, step=2)
    resumed.log_table("evaluation", {"question": ["c"], "em": [1.0]})
    resumed.end()

    run = client(resumed).get_run(run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params["p0"] == "0"
    assert len(run.data.params) == 151
    assert run.data.tags["kind"] == "test"
    assert [(point.step, point.value) for point in client(resumed).get_metric_history(run_id, "em")] == [(1, 0.25), (2, 0.75)]
    assert {file.path for file in client(resumed).list_artifacts(run_id)} == {"evaluation.json", "note.txt"}
    assert len(client(resumed).load_table(resumed.experiment_id, "evaluation.json", [run_id])) == 3
    assert (home.mlflow / "artifacts").is_dir()


def test_checkpoints_are_logged_models(home: Home) -> None:
    tracking = Tracking(TrackingSettings(), home)
    run_id = tracking.start_run("checkpoints", {}, {})
    model_id = tracking.log_checkpoint("step-3", "s3://bucket/checkpoints/3", {"em": 0.5}, step=3)
    tracking.end()
    model = client(tracking).get_logged_model(model_id)
    assert (model.name, model.tags["uri"], model.source_run_id) == ("step-3", "s3://bucket/checkpoints/3", run_id)
    assert [(metric.key, metric.value, metric.step) for metric in model.metrics] == [("em", 0.5, 3)]


def test_traces(home: Home) -> None:
    tracking = Tracking(TrackingSettings(), home)
    tracking.start_run("traces", {}, {})
    now = time.time_ns()
    spans = [
        Span("generate", "LLM", now, now + 2_000_000, {"tokens": 12}, {"text": "print(1)"}),
        Span("cell", "TOOL", now + 2_000_000, now + 5_000_000, {"code": "print(1)"}, {"output": "1"}),
    ]
    trace_id = tracking.log_trace("question", {"question": "one?"}, {"answer": "1"}, spans, {"status": "answered"})
    tracking.end()
    trace = client(tracking).get_trace(trace_id)
    assert trace.info.tags["status"] == "answered"
    assert trace.info.execution_duration == 5
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


def test_pages(home: Home) -> None:
    page = ui(home)
    try:
        assert page.alive
        assert "MLflow" in httpx.get(page.url, trust_env=False).text
    finally:
        page.stop()
    assert not page.alive
