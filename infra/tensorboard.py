"""Writes metrics of a run as TensorBoard event files. TensorBoard is imported on first use."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any


class EventFiles:
    """The event files in the folder of one run, a sink of metrics. A step's metrics are one event: all of them, or none."""

    def __init__(self, folder: Path) -> None:
        self.name = f"TensorBoard's files in {folder}"
        self._folder = folder
        self._writer: Any = None

    def begin(self) -> None:
        """Delete the files that are there, and begin one; pages that show what was in them forget it."""
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self.end()
        for path in self._folder.glob("events.out.tfevents.*"):
            path.unlink()
        self._writer = EventFileWriter(str(self._folder))
        self._writer.add_event(Event(session_log=SessionLog(status=SessionLog.START)))

    def log_metrics(self, metrics: Mapping[str, float], step: int, time_s: float) -> None:
        """Append the metrics of a step, and flush them to the file."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=float(value)) for name, value in metrics.items()]
        self._writer.add_event(Event(wall_time=time_s, step=step, summary=Summary(value=values)))
        self._writer.flush()

    def end(self) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
