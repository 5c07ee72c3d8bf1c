"""Logs metrics, configuration, tables, images, checkpoints and traces of runs to MLflow.

By default a SQLite file and a folder in the home; any tracking URI otherwise. MLflow is imported on first use: it takes seconds.
A run is found again by its name: a resumed run goes on where it was.
"""

import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from nbrl.infra.errors import ServerError
from nbrl.infra.home import Home

if TYPE_CHECKING:
    from mlflow import MlflowClient

ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "1",
    "GIT_PYTHON_REFRESH": "quiet",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",  # what is not delivered now is delivered later
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}
BATCH, METRICS = 100, 1000  # params or tags, and metrics, that MLflow takes in one call
PARAM_CHARACTERS = 6000
REACH_S = 10.0
SERVERS = ("http://", "https://")
OURS = "127.0.0.1,localhost"  # reached without a proxy

SpanKind = Literal["AGENT", "LLM", "TOOL", "CHAIN", "EVALUATOR"]


class TrackingSettings(BaseModel):
    """`uri`: a tracking server or database; by default the home's SQLite file. `artifacts`: where new experiments keep files."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    uri: str | None = Field(
        None,
        description="an MLflow server (http://host:port) or a database (sqlite:///file.db); the home's SQLite file when not set",
    )
    artifacts: str | None = Field(
        None,
        description="where new experiments keep their files; when not set, below the home or where the server keeps them",
    )
    experiment: str = Field("nbrl", description="the MLflow experiment of the runs; it is created if it does not exist")


@dataclass(frozen=True)
class Span:
    """One timed piece of a trace, directly below its root."""

    name: str
    kind: SpanKind
    start_ns: int
    end_ns: int
    inputs: Mapping[str, Any] = field(default_factory=dict)
    outputs: Mapping[str, Any] = field(default_factory=dict)


class Tracking:
    """One MLflow experiment and, after `start_run`, one run in it."""

    def __init__(self, settings: TrackingSettings, home: Home) -> None:
        self.settings = settings
        self._home = home
        self.uri = settings.uri or database(home)
        self._run_id: str | None = None

    @cached_property
    def _client(self) -> "MlflowClient":
        os.environ.update(ENVIRONMENT)
        import mlflow

        try:
            mlflow.set_tracking_uri(self.uri)
            client = mlflow.MlflowClient(self.uri)
            with self._home.lock("mlflow"):  # two processes must not migrate a new database at once
                client.get_experiment_by_name(self.settings.experiment)
        except Exception as error:
            raise ServerError(f"MLflow at {self.uri} cannot be used: {error}") from error
        return client

    @cached_property
    def experiment_id(self) -> str:
        with self._home.lock("mlflow"):
            experiment = self._client.get_experiment_by_name(self.settings.experiment)
            if experiment is not None:
                return str(experiment.experiment_id)
            artifacts = self.settings.artifacts
            if artifacts is None and self.settings.uri is None:
                artifacts = (self._home.mlflow / "artifacts" / self.settings.experiment).as_uri()
            return str(self._client.create_experiment(self.settings.experiment, artifact_location=artifacts))

    @property
    def run_id(self) -> str:
        if self._run_id is None:
            raise ServerError("nothing can be tracked before start_run")
        return self._run_id

    def start_run(self, run_name: str, params: Mapping[str, object], tags: Mapping[str, str]) -> str:
        """Start or continue the run with this name and these tags; returns its id. Existing params do not change."""
        run = self._find(run_name, tags)
        if run is not None:
            self._client.update_run(run.info.run_id, status="RUNNING")
        else:
            run = self._client.create_run(self.experiment_id, run_name=run_name)
        self._run_id = str(run.info.run_id)
        from mlflow.entities import Param, RunTag  # after `_client`, which sets how MLflow behaves

        new = [Param(name, str(value)[:PARAM_CHARACTERS]) for name, value in params.items() if name not in run.data.params]
        for start in range(0, len(new), BATCH):
            self._client.log_batch(self.run_id, params=new[start : start + BATCH])
        self._client.log_batch(self.run_id, tags=[RunTag(name, value) for name, value in tags.items()])
        return self._run_id

    def find_run(self, run_name: str, tags: Mapping[str, str]) -> bool:
        """Take the run with this name and these tags, for reading; returns whether there is one."""
        run = self._find(run_name, tags)
        self._run_id = None if run is None else str(run.info.run_id)
        return run is not None

    def _find(self, run_name: str, tags: Mapping[str, str]) -> Any:
        """The run with this name and these tags, or None."""
        if '"' in run_name:
            raise ServerError(f"a run cannot be named {run_name}: MLflow cannot find names with a double quote again")
        conditions = [f'attributes.run_name = "{run_name}"', *(f"tags.`{name}` = '{value}'" for name, value in tags.items())]
        runs = self._client.search_runs([self.experiment_id], " and ".join(conditions), max_results=1)
        return runs[0] if runs else None

    def start_over(self) -> None:
        """Mark the run deleted, so that the next `start_run` makes a new one of its name."""
        self._client.delete_run(self.run_id)
        self._run_id = None

    def tag(self, name: str) -> str:
        """A tag of the run; empty if it has none of that name."""
        return str(self._client.get_run(self.run_id).data.tags.get(name, ""))

    def set_tag(self, name: str, value: str) -> None:
        self._client.set_tag(self.run_id, name, value)

    def history(self, metric: str) -> list[tuple[int, float]]:
        """Steps and values of a metric of the run."""
        return [(point.step, point.value) for point in self._client.get_metric_history(self.run_id, metric)]

    def steps(self, metric: str) -> set[int]:
        """The steps at which the run has a metric."""
        return {step for step, _ in self.history(metric)}

    def traced(self, tags: Mapping[str, str]) -> set[str]:
        """Names of the run's traces with these tags."""
        conditions = " AND ".join(f"tags.`{name}` = '{value}'" for name, value in tags.items())
        traces = self._client.search_traces(
            locations=[self.experiment_id], filter_string=conditions, run_id=self.run_id, include_spans=False
        )
        return {str(trace.info.tags.get("mlflow.traceName", "")) for trace in traces}

    def has_checkpoint(self, name: str) -> bool:
        """Whether the run has a logged model of this name."""
        conditions = f"name = '{name}' AND source_run_id = '{self.run_id}'"
        return bool(self._client.search_logged_models([self.experiment_id], conditions, max_results=1))

    def log_metrics(self, metrics: Mapping[str, float], step: int, time_s: float | None = None) -> None:
        """Log the metrics of a step, measured at `time_s` seconds since 1970, by default now."""
        from mlflow.entities import Metric

        when = int((time.time() if time_s is None else time_s) * 1000)
        points = [Metric(name, float(value), when, step) for name, value in metrics.items()]
        for start in range(0, len(points), METRICS):
            self._client.log_batch(self.run_id, metrics=points[start : start + METRICS])

    def log_table(self, name: str, columns: Mapping[str, Sequence[object]]) -> None:
        """Add rows, given by column, to the run's table `name`."""
        self._client.log_table(self.run_id, {column: list(values) for column, values in columns.items()}, f"{name}.json")

    def column(self, table: str, name: str) -> list[Any]:
        """A column of the run's table; empty if it has no such table or column."""
        if f"{table}.json" not in {file.path for file in self._client.list_artifacts(self.run_id)}:
            return []
        rows = self._client.load_table(self.experiment_id, f"{table}.json", [self.run_id])
        return list(rows[name]) if name in rows else []

    def log_file(self, path: Path, folder: str | None = None) -> None:
        self._client.log_artifact(self.run_id, str(path), folder)

    def log_checkpoint(self, name: str, uri: str, metrics: Mapping[str, float], step: int) -> str:
        """Register weights stored at `uri` as a logged model with its metrics; returns the model's id."""
        from mlflow import create_external_model

        model = create_external_model(
            name=name, source_run_id=self.run_id, tags={"uri": uri, "step": str(step)}, experiment_id=self.experiment_id
        )
        for metric, value in metrics.items():
            self._client.log_metric(self.run_id, metric, float(value), step=step, model_id=model.model_id)
        return str(model.model_id)

    def log_trace(
        self, name: str, inputs: Mapping[str, Any], outputs: Mapping[str, Any], spans: Sequence[Span], tags: Mapping[str, str]
    ) -> str:
        """Log one trajectory, ordered by the times of its spans; returns the trace's id."""
        start = min((span.start_ns for span in spans), default=time.time_ns())
        end = max((span.end_ns for span in spans), default=start)
        root = self._client.start_trace(
            name,
            span_type="AGENT",
            inputs=dict(inputs),
            tags=dict(tags),
            experiment_id=self.experiment_id,
            start_time_ns=start,
            run_id=self.run_id,
        )
        for span in spans:
            child = self._client.start_span(
                span.name, root.trace_id, root.span_id, span_type=span.kind, inputs=dict(span.inputs), start_time_ns=span.start_ns
            )
            self._client.end_span(root.trace_id, child.span_id, outputs=dict(span.outputs), end_time_ns=span.end_ns)
        self._client.end_trace(root.trace_id, outputs=dict(outputs), end_time_ns=end)
        return str(root.trace_id)

    def end(self, status: Literal["FINISHED", "FAILED", "KILLED"] = "FINISHED") -> None:
        """End the run, if one was started, after all its traces are written."""
        if self._run_id is not None:
            import mlflow

            mlflow.flush_trace_async_logging()
            self._client.set_terminated(self._run_id, status)
            self._run_id = None


def check_reachable(uri: str) -> None:
    """Raises ServerError for a tracking server that does not answer. Databases are not opened."""
    if not uri.startswith(SERVERS):
        return
    import requests  # as MLflow's own client: with its rules for proxies and certificates

    verify = os.environ.get("MLFLOW_TRACKING_INSECURE_TLS", "").lower() not in ("true", "1")
    try:  # any answer will do: who may read it is found out later
        requests.get(f"{uri.rstrip('/')}/health", timeout=REACH_S, proxies={"no_proxy": OURS}, verify=verify)
    except (requests.RequestException, ValueError) as error:
        raise ServerError(
            f"no MLflow server answers at tracking.uri {uri} ({type(error).__name__}): start one there, or leave "
            "tracking.uri out to keep the books in the home folder"
        ) from error


def check_uri(uri: str) -> None:
    """Raises ServerError for what is no tracking URI."""
    if uri.startswith("sqlite:///"):
        folder = Path(uri.removeprefix("sqlite:///")).absolute().parent
        if not folder.is_dir():
            raise ServerError(f"tracking.uri {uri}: there is no folder {folder}; make it, or name another database")
    elif not uri.startswith(SERVERS) and not re.match(r"(postgresql|mysql|mssql)(\+\w+)?://.|databricks(://.+)?$", uri):
        raise ServerError(
            f"tracking.uri {uri!r} is no tracking server or database: give http://host:port or sqlite:///path/mlflow.db, or "
            "leave it out"
        )


def database(home: Home) -> str:
    return f"sqlite:///{home.mlflow / 'mlflow.db'}"
