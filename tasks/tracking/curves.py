"""Delivers the metrics of a run from its storage to TensorBoard's event files, each once.

The files themselves say what they have. Where they have something that the storage has not, because iterations were done again or
another run had the name, they are written anew.
"""

import math
import struct
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from nbrl.infra.storage import Storage
from nbrl.infra.tensorboard import EventFiles, log_missing
from nbrl.infra.tracking import TrackingSettings
from nbrl.tasks.runs.history import Record, read_record
from nbrl.tasks.runs.results import NodeResult, evaluation_of
from nbrl.tasks.runs.run import Run
from nbrl.tasks.runs.scope import Weights


class MadePolicy(NamedTuple):
    """A policy, and when its iteration was finished (seconds since 1970)."""

    weights: Weights
    finished: float


class Steps:
    """The iterations of a run up to one, and the policies that they made."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.count = 0
        self.policies: dict[int, MadePolicy] = {
            0: MadePolicy(Weights(digest=run.policy), 0.0)
        }  # each at the first step it was there

    @property
    def updates(self) -> int:
        """Updates that these iterations made."""
        return max(made.weights.updates for made in self.policies.values())

    def updated(self, record: Record) -> bool:
        """Return whether the next iteration made a policy."""
        return record.updates > self.updates

    def add(self, record: Record) -> None:
        """Count the next iteration."""
        updated = self.updated(record)
        self.count += 1
        if updated:
            self.policies[self.count] = MadePolicy(record.policy, record.finished)

    def evaluations(self, storage: Storage, besides: Collection[int]) -> Iterator[tuple[int, Weights, NodeResult]]:
        """The finished evaluations of these policies with their steps, besides those at some steps."""
        layout = self._run.layout
        folders = {"/".join(key.split("/")[:4]) for key in storage.list(layout.evaluations)}
        for step, (weights, _) in self.policies.items():
            if step in besides or layout.evaluation(weights.updates).folder not in folders:
                continue  # without a request for each policy: most may have no evaluation
            if (result := evaluation_of(storage, self._run, weights)) is not None:
                yield step, weights, result


def eval_metrics(result: NodeResult) -> dict[str, float]:
    """Return the scores of an evaluation, by the names that they have beside the iterations' metrics."""
    return {f"eval/{name}": value for name, value in result.artifact.values.items()}


class MetricPoint(NamedTuple):
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

    def _new(self) -> Iterator[MetricPoint]:
        """What the storage has since the last call."""
        while (record := read_record(self._storage, self._run, self._steps.count)) is not None:
            self._steps.add(record)
            yield MetricPoint(dict(record.metrics), self._steps.count, record.finished or None)
        for step, _, result in self._steps.evaluations(self._storage, self._evaluated):
            self._evaluated.add(step)
            yield MetricPoint(eval_metrics(result), step, result.finished)

    def _check(self, points: list[MetricPoint]) -> None:
        """Delete the files if they have a value that none of these points has, or one of them twice."""
        wanted = {(name, point.step): value for point in points for name, value in point.metrics.items()}
        found = [(name, step, value) for name in self._files.names() for step, value in self._files.history(name)]
        known = all((name, step) in wanted and _same(value, wanted[name, step]) for name, step, value in found)
        if not known or len({(name, step) for name, step, _ in found}) < len(found):
            self._files.start_over()


def curves_of(settings: TrackingSettings, storage: Storage, run: Run) -> Curves | None:
    """Return the delivery to `tracking.tensorboard`; None where that is not set."""
    if settings.tensorboard is None:
        return None
    return Curves(storage, run, EventFiles(Path(settings.tensorboard).absolute() / run.name))


def _same(found: float, value: float) -> bool:
    """Return whether a value that was read is this one rounded to 32 bits."""
    if math.isnan(value) or math.isinf(value):
        return math.isnan(found) if math.isnan(value) else found == value
    try:
        return bool(struct.unpack("f", struct.pack("f", value))[0] == struct.unpack("f", struct.pack("f", found))[0])
    except OverflowError:  # too large for 32 bits: it stands there as infinity
        return math.isinf(found)
