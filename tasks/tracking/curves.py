"""Delivers the metrics of a run from its storage to TensorBoard's event files, each once.

The files themselves say what they have. Where they have something that the storage has not, because iterations were done again or
another run had the name, they are written anew.
"""

import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from nbrl.infra.storage import Storage
from nbrl.infra.tensorboard import EventFiles, log_missing
from nbrl.infra.tracking import TrackingSettings
from nbrl.tasks.runs.history import read_record
from nbrl.tasks.runs.run import Run
from nbrl.tasks.tracking.steps import Steps, eval_metrics


class Point(NamedTuple):
    """The metrics of a step, and when they were measured (seconds since 1970)."""

    metrics: dict[str, float]
    step: int
    finished: float | None


class Curves:
    """The delivery of one run's metrics. What a call could not deliver, the next one does."""

    def __init__(self, storage: Storage, run: Run, files: EventFiles) -> None:
        self._storage, self._run, self._files = storage, run, files
        self._begin()

    @property
    def place(self) -> str:
        return str(self._files.folder)

    def _begin(self) -> None:
        self._begun, self._steps, self._evaluated = False, Steps(self._run), set[int]()

    def catch_up(self) -> None:
        """Write what the files do not have."""
        try:
            new = list(self._new())
            if not self._begun:
                self._check(new)
                self._begun = True
            for point in new:
                log_missing(self._files, point.metrics, point.step, point.finished)
        except Exception:
            self._begin()
            raise

    def end(self) -> None:
        """Close the files."""
        self._files.close()

    def _new(self) -> Iterator[Point]:
        """What the storage has since the last call."""
        while (record := read_record(self._storage, self._run, self._steps.count)) is not None:
            self._steps.add(record)
            yield Point(dict(record.metrics), self._steps.count, record.finished or None)
        for step, _, result in self._steps.evaluations(self._storage, self._evaluated):
            self._evaluated.add(step)
            yield Point(eval_metrics(result), step, result.finished)

    def _check(self, points: list[Point]) -> None:
        """Delete the files if they have a value that none of these points has, or one of them twice."""
        wanted = {(name, point.step): value for point in points for name, value in point.metrics.items()}
        found = [(name, step, value) for name in self._files.names() for step, value in self._files.history(name)]
        known = all((name, step) in wanted and _same(value, wanted[name, step]) for name, step, value in found)
        if not known or len({(name, step) for name, step, _ in found}) < len(found):
            self._files.start_over()


def curves_of(settings: TrackingSettings, storage: Storage, run: Run) -> Curves | None:
    """The delivery to `tracking.tensorboard`; None where that is not set."""
    if settings.tensorboard is None:
        return None
    return Curves(storage, run, EventFiles(Path(settings.tensorboard).absolute() / run.name))


def _same(found: float, value: float) -> bool:
    """Whether a value that was read is this one rounded to 32 bits."""
    if math.isnan(value) or math.isinf(value):
        return math.isnan(found) if math.isnan(value) else found == value
    try:
        return bool(struct.unpack("f", struct.pack("f", value))[0] == struct.unpack("f", struct.pack("f", found))[0])
    except OverflowError:  # too large for 32 bits: it stands there as infinity
        return math.isinf(found)
