"""Sinks of metrics beside MLflow: each has the metrics of a run from its storage, so that it may lose them at any time.

Another kind is a class with the methods of `MetricSink` and a line of `sinks_of`.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from nbrl.infra.storage import Storage
from nbrl.infra.tensorboard import EventFiles
from nbrl.infra.wandb_runs import WandbRuns
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.history import read_record
from nbrl.tasks.runs.run import Run
from nbrl.tasks.tracking.names import shown
from nbrl.tasks.tracking.parameters import parameters
from nbrl.tasks.tracking.steps import Steps, eval_metrics


class MetricSink(Protocol):
    """A place for the metrics of one run. `name` is its name in warnings."""

    name: str

    def begin(self) -> None:
        """Take all metrics of the run from its first step on, whatever was there before."""

    def log_metrics(self, metrics: Mapping[str, float], step: int, time_s: float) -> None:
        """Take metrics of a step, measured at `time_s` seconds since 1970. Those of an evaluation may come after later steps."""

    def end(self) -> None:
        """Keep what was taken. Nothing more comes, unless it begins again."""


class _Point(NamedTuple):
    step: int
    metrics: dict[str, float]
    finished: float


class SinkDelivery:
    """The delivery of one run's metrics to a sink. After a call that failed, the next one begins again."""

    def __init__(self, storage: Storage, run: Run, sink: MetricSink) -> None:
        self._storage, self._run, self.sink = storage, run, sink
        self._steps: Steps | None = None
        self._evaluated = set[int]()

    def catch_up(self) -> None:
        """Write what the storage has since the last call."""
        try:
            if self._steps is None:
                self.sink.begin()
                self._steps, self._evaluated = Steps(self._run), set()
            for step, metrics, finished in sorted(self._new(self._steps), key=lambda point: point.step):
                self.sink.log_metrics(metrics, step, finished)
        except Exception:
            self._steps = None
            raise

    def _new(self, steps: Steps) -> Iterator[_Point]:
        while (record := read_record(self._storage, self._run, steps.count)) is not None:
            steps.add(record)
            yield _Point(steps.count, shown(record.metrics, self._run.environments), record.finished)
        for step, _, result in steps.evaluations(self._storage, self._evaluated):
            self._evaluated.add(step)
            yield _Point(step, shown(eval_metrics(result), self._run.environments), result.finished)


def sinks_of(config: RunConfig, storage: Storage, run: Run) -> list[SinkDelivery]:
    """Return the deliveries to the sinks that the settings name."""
    settings = config.tracking
    sinks: list[MetricSink] = []
    if settings.tensorboard is not None:
        sinks.append(EventFiles(Path(settings.tensorboard).absolute() / run.name))
    if settings.wandb is not None:
        sinks.append(WandbRuns(settings.wandb, run.name, parameters(config)))
    return [SinkDelivery(storage, run, sink) for sink in sinks]
