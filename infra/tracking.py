"""Logs the runs of an MLflow experiment: parameters, tags, metrics, tables and files; what belongs to a run has files of its own.

By default a SQLite file and a folder in the home; any tracking URI otherwise. MLflow is imported on first use: it takes seconds.
A run is found again by its name and its identity: a resumed run goes on where it was.
"""

import os
import re
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from nbrl.infra.closed import ClosedModel
from nbrl.infra.errors import ServerError
from nbrl.infra.home import Home
from nbrl.infra.setup import databases
from nbrl.infra.tracking_address import DATABASE, Machine, database
from nbrl.infra.tracking_models import LoggedModel, Models
from nbrl.infra.tracking_traces import Datasets, Traces
from nbrl.infra.wandb_runs import WandbSettings

if TYPE_CHECKING:
    from mlflow import MlflowClient

ENVIRONMENT = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "1",
    "GIT_PYTHON_REFRESH": "quiet",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_ENABLE_ASYNC_TRACE_LOGGING": "false",  # a trace is there before its assessments
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",  # what is not delivered now is delivered later
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}
BATCH, METRICS = 100, 1000  # params or tags, and metrics, that MLflow takes in one call
PARAM_CHARACTERS, TAG_CHARACTERS = 6000, 5000
KIND, TRAINS, INFERRED = "mlflow.experimentKind", "custom_model_development", "_inferred"
ENDED = "nbrl.ended"
PARENT = "mlflow.parentRunId"  # under which its pages show a run

Ended = Literal["FINISHED", "FAILED", "KILLED"]


class TrackingSettings(ClosedModel):
    """`uri`: a tracking server or database; by default the home's SQLite file. `artifacts`: where new experiments keep files."""

    uri: str | None = Field(
        None,
        description="an MLflow server (http://host:port) or a database (sqlite:///file.db); the home's SQLite file when not set",
    )
    artifacts: str | None = Field(
        None,
        description="where new experiments keep their files; when not set, below the home or where the server keeps them",
    )
    experiment: str = Field("nbrl", description="the MLflow experiment of the runs; it is created if it does not exist")
    tensorboard: str | None = Field(
        None,
        description="a folder in which each run has one with TensorBoard's event files; needs the extra tensorboard; "
        "none when not set",
    )
    wandb: WandbSettings | None = None


class Tracking:
    """One MLflow experiment and, after `start_run`, one run in it, with its models, traces and datasets."""

    def __init__(self, settings: TrackingSettings, home: Home) -> None:
        self.settings = settings
        self._home = home
        self.uri = settings.uri or database(home)
        self._run_id: str | None = None
        self.models, self.traces, self.datasets, self.machine = Models(self), Traces(self), Datasets(self), Machine(self)

    @cached_property
    def client(self) -> "MlflowClient":
        os.environ.update(ENVIRONMENT)
        import mlflow

        if self.settings.uri is None:
            databases.begin("mlflow", self._home.mlflow / DATABASE)
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
        """Return the id of the experiment, which is created where there is none, and restored where it was deleted.

        It opens on training runs unless a user chose otherwise.
        """
        client = self.client  # which takes the same lock
        with self._home.lock("mlflow"):
            experiment = client.get_experiment_by_name(self.settings.experiment)
            if experiment is None:
                artifacts = self.settings.artifacts
                if artifacts is None and self.settings.uri is None:
                    artifacts = (self._home.mlflow / "artifacts" / _one_part(self.settings.experiment)).as_uri()
                tags = {KIND: TRAINS}
                return str(client.create_experiment(self.settings.experiment, artifact_location=artifacts, tags=tags))
            if experiment.lifecycle_stage != "active":  # MLflow keeps the name of one that was deleted
                client.restore_experiment(experiment.experiment_id)
            kind = str(experiment.tags.get(KIND, ""))
            if not kind or kind.endswith(INFERRED):
                client.set_experiment_tag(experiment.experiment_id, KIND, TRAINS)
            return str(experiment.experiment_id)

    @property
    def run_id(self) -> str:
        if self._run_id is None:
            raise ServerError("nothing can be tracked before start_run")
        return self._run_id

    def start_run(
        self,
        run_name: str,
        params: Mapping[str, object],
        identity: Mapping[str, str],
        facts: Mapping[str, str] | None = None,
        started: float | None = None,
    ) -> str:
        """Start or continue the run with this name and the tags `identity`; returns its id.

        Existing params do not change; the tags `facts` do. `started` is in seconds since 1970.
        """
        tags = {name: value[:TAG_CHARACTERS] for name, value in {**identity, **(facts or {})}.items()}
        run = self._find(run_name, identity)
        if run is not None:
            self.client.update_run(run.info.run_id, status="RUNNING")
            if ENDED in run.data.tags:
                self.client.delete_tag(run.info.run_id, ENDED)
        else:
            when = None if started is None else int(started * 1000)
            run = self.client.create_run(self.experiment_id, start_time=when, run_name=run_name, tags=dict(identity))
        self._run_id = str(run.info.run_id)
        from mlflow.entities import Param, RunTag  # after `client`, which sets how MLflow behaves

        new = [Param(name, str(value)[:PARAM_CHARACTERS]) for name, value in params.items() if name not in run.data.params]
        for start in range(0, len(new), BATCH):
            self.client.log_batch(self.run_id, params=new[start : start + BATCH])
        self.client.log_batch(self.run_id, tags=[RunTag(name, value) for name, value in tags.items()])
        return self._run_id

    def find_run(self, run_name: str, identity: Mapping[str, str]) -> bool:
        """Take the run with this name and these tags, for reading; returns whether there is one."""
        run = self._find(run_name, identity)
        self._run_id = None if run is None else str(run.info.run_id)
        return run is not None

    def _find(self, run_name: str, identity: Mapping[str, str]) -> Any:
        """Return the run with this name and these tags, or None."""
        if '"' in run_name:
            raise ServerError(f"a run cannot be named {run_name}: MLflow cannot find names with a double quote again")
        named = [f'attributes.run_name = "{run_name}"', *(f"tags.`{name}` = '{value}'" for name, value in identity.items())]
        return next(iter(self.client.search_runs([self.experiment_id], " and ".join(named), max_results=1)), None)

    def id_of(self, run_name: str, identity: Mapping[str, str]) -> str:
        """Return the id of the run with this name and these tags; empty if there is none."""
        run = self._find(run_name, identity)
        return "" if run is None else str(run.info.run_id)

    def adopt(self, tags: Mapping[str, str]) -> None:
        """Make all runs with these tags children of this one."""
        wanted = " and ".join(f"tags.`{name}` = '{value}'" for name, value in tags.items())
        for run in self.client.search_runs([self.experiment_id], wanted):
            if run.data.tags.get(PARENT) != self.run_id:
                self.client.set_tag(run.info.run_id, PARENT, self.run_id)

    def start_over(self) -> None:
        """Mark the run deleted, so that the next `start_run` makes a new one of its name."""
        self.client.delete_run(self.run_id)
        self._run_id = None

    def tag(self, name: str) -> str:
        """Return a tag of the run; empty if it has none of that name."""
        return str(self.client.get_run(self.run_id).data.tags.get(name, ""))

    def set_tag(self, name: str, value: str) -> None:
        self.client.set_tag(self.run_id, name, value)

    def history(self, metric: str) -> list[tuple[int, float]]:
        """Return steps and values of a metric of the run."""
        return [(point.step, point.value) for point in self.client.get_metric_history(self.run_id, metric)]

    def log_metrics(
        self, metrics: Mapping[str, float], step: int, time_s: float | None = None, model: LoggedModel | None = None
    ) -> None:
        """Log the metrics of a step, measured at `time_s` seconds since 1970, by default now; those of a model for it too."""
        from mlflow.entities import Metric

        when = int((time.time() if time_s is None else time_s) * 1000)
        owner = {"model_id": model.id, "run_id": self.run_id} if model else {}
        points = [Metric(name, float(value), when, step, **owner) for name, value in metrics.items()]
        for start in range(0, len(points), METRICS):
            self.client.log_batch(self.run_id, metrics=points[start : start + METRICS])

    def log_table(self, name: str, columns: Mapping[str, Sequence[object]]) -> None:
        """Add rows, given by column, to the run's table `name`."""
        self.client.log_table(self.run_id, {column: list(values) for column, values in columns.items()}, f"{name}.json")

    def tables(self, folder: str | None = None) -> set[str]:
        """Return names of the run's tables in a folder of its artifacts."""
        files = self.client.list_artifacts(self.run_id, folder)
        return {str(file.path).removesuffix(".json") for file in files if file.path.endswith(".json")}

    def column(self, table: str, name: str) -> list[Any]:
        """Return a column of the run's table; empty if it has no such table or column."""
        if table not in self.tables():
            return []
        rows = self.client.load_table(self.experiment_id, f"{table}.json", [self.run_id])
        return list(rows[name]) if name in rows else []

    def log_text(self, text: str, name: str) -> None:
        """Write the file `name` of the run, in place of an earlier one."""
        self.client.log_text(self.run_id, text, name)

    def log_file(self, path: Path, folder: str | None = None) -> None:
        self.client.log_artifact(self.run_id, str(path), folder)

    def end(self, status: Ended = "FINISHED", reason: str = "", ended: float | None = None) -> None:
        """End the run, if one was started, after all its traces are written; `ended` is in seconds since 1970, by default now."""
        if self._run_id is None:
            return
        import mlflow

        self.machine.leave()
        mlflow.flush_trace_async_logging()
        if reason:
            self.set_tag(ENDED, reason[:TAG_CHARACTERS])
        self.client.set_terminated(self._run_id, status, None if ended is None else int(ended * 1000))
        self._run_id = None


def _one_part(name: str) -> str:
    """Return a name as one part of a path, whatever it holds."""
    return re.sub(r"^\.|[^\w .-]", lambda found: f"%{ord(found[0]):x}", name)[:200]
