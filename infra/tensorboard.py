"""Writes metrics of a run as TensorBoard event files, and reads them again: one kind of sink of metrics, as MLflow is.

A step's metrics are one event, so that a process that is killed leaves all of them or none. TensorBoard is imported on first use.
"""

import shutil
import time
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol


class EventFiles:
    """The event files in the folder of one run. Only `log_metrics` and `start_over` change them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._writer: Any = None

    def log_metrics(self, metrics: Mapping[str, float], step: int, time_s: float | None = None) -> None:
        """Append the metrics of a step, and flush them to the file."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        points = self._points  # of the files before this writer's
        if self._writer is None:
            self._writer = EventFileWriter(str(self.folder))
        values = [Summary.Value(tag=name, simple_value=float(value)) for name, value in metrics.items()]
        when = time.time() if time_s is None else time_s
        self._writer.add_event(Event(wall_time=when, step=step, summary=Summary(value=values)))
        self._writer.flush()
        for name, value in metrics.items():
            points.setdefault(name, []).append((step, float(value)))

    def history(self, metric: str) -> list[tuple[int, float]]:
        """Steps and values of a metric. What is read from a file is rounded to 32 bits."""
        return list(self._points.get(metric, ()))

    def names(self) -> set[str]:
        """Return the metrics that are there."""
        return set(self._points)

    def start_over(self) -> None:
        """Delete the event files of the run."""
        self.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def close(self) -> None:
        """Close the file. What comes next reads all files again."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        self.__dict__.pop("_points", None)

    @cached_property
    def _points(self) -> dict[str, list[tuple[int, float]]]:
        """All points, by metric. A file that a killed process left in the middle of an event is read up to there."""
        from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader

        found: dict[str, list[tuple[int, float]]] = {}
        for path in sorted(self.folder.glob("events.out.tfevents.*")):
            for event in LegacyEventFileLoader(str(path)).Load():
                for value in event.summary.value:
                    found.setdefault(value.tag, []).append((event.step, value.simple_value))
        return found


class MetricSink(Protocol):
    """Metrics of one run, each at most once per step."""

    def log_metrics(self, metrics: Mapping[str, float], step: int, time_s: float | None = None) -> None:
        """Take the metrics of a step, measured at `time_s` seconds since 1970, by default now."""

    def history(self, metric: str) -> list[tuple[int, float]]:
        """Steps and values of a metric."""


def log_missing(sink: MetricSink, metrics: Mapping[str, float], step: int, time_s: float | None = None) -> None:
    """Log those of the metrics that the sink does not have at this step."""
    missing = {name: value for name, value in metrics.items() if step not in {at for at, _ in sink.history(name)}}
    if missing:
        sink.log_metrics(missing, step, time_s)
