"""Delivers a run from its storage to MLflow: everything in order, each part once, whoever delivered the parts before it.

What was delivered is known to MLflow itself: a tag counts the iterations, and what a delivery that was cut off left of the next
one is looked for before it is written. Nothing of a run depends on MLflow, so it can be rebuilt from the storage at any time.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from nbrl.agent.trajectory import from_table
from nbrl.infra.errors import InfraError, MissingError, ServerError
from nbrl.infra.storage import Storage, sha256
from nbrl.infra.tracking import Tracking
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.history import Record, read_record
from nbrl.tasks.runs.results import evaluation_of
from nbrl.tasks.runs.run import Run
from nbrl.tasks.runs.scope import Weights
from nbrl.tasks.runs.summary import Summary
from nbrl.tasks.tracking.traces import log_trace

DELIVERED, SUMMARY = "nbrl.delivered", "nbrl.summary"
ON_CHECKPOINT = "reward/em"  # logged with the checkpoint, and so for the run too
TABLE, PICTURE = "held-out", "learning-curve.png"


class Books:
    """The delivery of one run. Every method raises what MLflow or the storage raise; the next call goes on from there."""

    def __init__(self, config: RunConfig, storage: Storage, run: Run, tracking: Tracking) -> None:
        self._config, self._storage, self._run, self._tracking = config, storage, run, tracking
        self._begun = False
        self._doubtful = True  # whether an earlier delivery may have left a part of the next iteration
        self._uncounted = False  # whether MLflow has iterations of a release that did not count them
        self._policies: dict[int, Weights] = {}  # by step; each at the first step it was there
        self._evaluated: set[int] = set()  # steps
        self.delivered = 0  # iterations

    def catch_up(self) -> None:
        """Deliver all that the storage has and MLflow has not."""
        if not self._begun:
            self._begin()
        self._begun = False  # unless all of it succeeds: the next call then looks for what this one left
        while (record := read_record(self._storage, self._run, self.delivered)) is not None:
            self._iteration(record)
            self._count(record)
            self._tracking.set_tag(DELIVERED, f"{self.delivered} {_mark(record)}")
            self._doubtful = self._uncounted
        self._evaluations()
        self._summary()
        self._begun = True

    def end(self, status: Literal["FINISHED", "FAILED"]) -> None:
        """End MLflow's run after all was delivered, and note on the storage that a finished run is complete there."""
        self._tracking.end(status)
        if status == "FINISHED" and (mark := _summary_mark(self._storage, self._run)):
            self._storage.write_json(self._run.layout.delivered, {"summary": mark, "uri": self._tracking.uri})

    def is_finished(self) -> bool:
        """Whether the run has a summary."""
        return bool(_summary_mark(self._storage, self._run))

    def is_complete(self) -> bool:
        """Whether a delivery to this MLflow noted that it delivered the finished run."""
        try:
            noted = self._storage.read_json(self._run.layout.delivered)
        except MissingError:
            return False
        return noted == {"summary": _summary_mark(self._storage, self._run), "uri": self._tracking.uri}

    def behind(self) -> int:
        """Number of recorded iterations that are not delivered."""
        count = 0
        while self._storage.exists(self._run.layout.iteration(self.delivered + count).record):
            count += 1
        return count

    def _begin(self) -> None:
        self._open()
        delivered, _, mark = self._tracking.tag(DELIVERED).partition(" ")
        records = [read_record(self._storage, self._run, iteration) for iteration in range(int(delivered or 0))]
        if records and (records[-1] is None or mark != _mark(records[-1])):
            self._tracking.start_over()  # iterations that MLflow has were done again
            self._open()
            records = []
        self.delivered, self._policies = 0, {0: Weights(digest=self._run.policy)}
        for record in filter(None, records):
            self._count(record)
        self._evaluated = self._tracking.steps("eval/em")
        self._uncounted = not delivered and bool(self._tracking.steps(ON_CHECKPOINT))
        self._begun = self._doubtful = True

    def _open(self) -> None:
        tags = {"run_id": self._run.run_id, "digest": self._run.config_digest}
        self._tracking.start_run(self._run.name, flatten(self._config.model_dump(mode="json")), tags)

    def _count(self, record: Record) -> None:
        """Note that the iteration is delivered."""
        self.delivered += 1
        if record.updates > self._updates:
            self._policies[self.delivered] = record.policy

    @property
    def _updates(self) -> int:
        """Updates that the delivered iterations made."""
        return max(policy.updates for policy in self._policies.values())

    def _iteration(self, record: Record) -> None:
        """Checkpoint, traces and metrics. What a delivery that was cut off wrote already is not written twice."""
        step, metrics = record.iteration + 1, dict(record.metrics)
        if record.updates > self._updates:
            name, uri = f"{self._run.name}-{record.updates:06d}", self._storage.uri(record.checkpoint)
            if not (self._doubtful and self._tracking.has_checkpoint(name)):
                self._tracking.log_checkpoint(name, uri, {ON_CHECKPOINT: metrics.pop(ON_CHECKPOINT)}, step)
        self._traces(record)
        if self._doubtful:
            metrics = {name: value for name, value in metrics.items() if step not in self._tracking.steps(name)}
        if metrics:
            self._tracking.log_metrics(metrics, step, record.finished or None)

    def _traces(self, record: Record) -> None:
        tags = {"run": self._run.name, "iteration": str(record.iteration)}
        first = record.rounds[0].trajectories
        chosen = from_table(self._storage.read_table(first.path, first.digest).slice(0, self._config.record.traces))
        there = self._tracking.traced(tags) if chosen and self._doubtful else set()
        for trajectory in chosen:
            if trajectory.id not in there:
                log_trace(self._tracking, trajectory, tags)

    def _evaluations(self) -> None:
        folders = {"/".join(key.split("/")[:4]) for key in self._storage.list(self._run.layout.evaluations)}
        for step, policy in self._policies.items():
            if step in self._evaluated or self._run.layout.evaluation(policy.updates).folder not in folders:
                continue  # without a request for each policy: most may have no evaluation
            if (result := evaluation_of(self._storage, self._run, policy)) is not None:
                scores = {f"eval/{name}": value for name, value in result.artifact.values.items()}
                self._tracking.log_metrics(scores, step, result.finished)
                self._evaluated.add(step)

    def _summary(self) -> None:
        """The table of held-out scores, and the learning curve."""
        layout, mark = self._run.layout, _summary_mark(self._storage, self._run)
        if self._tracking.tag(SUMMARY) == mark:  # both are empty where there is no summary
            return
        summary = Summary.model_validate(self._storage.read_json(layout.summary))
        if summary.iterations not in self._tracking.column(TABLE, "iterations"):
            self._tracking.log_table(TABLE, _scores(summary))
        with tempfile.TemporaryDirectory() as folder:
            picture = Path(folder, PICTURE)
            picture.write_bytes(self._storage.read_bytes(layout.curve))
            self._tracking.log_file(picture)
        self._tracking.set_tag(SUMMARY, mark)


def deliver(books: Books, tracking: Tracking) -> int:
    """Deliver a run that nobody trains, and end it in MLflow as what it is; returns how many iterations MLflow then has.

    Raises ServerError and StorageError.
    """
    try:
        books.catch_up()
        books.end("FINISHED" if books.is_finished() else "FAILED")
    except (InfraError, ConfigError):
        raise
    except Exception as error:
        raise ServerError(f"MLflow at {tracking.uri} took {books.delivered} iterations, then no more: {error}") from error
    return books.delivered


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, object]:
    """Nested settings as dotted keys."""
    flat: dict[str, object] = {}
    for key, value in tree.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def _summary_mark(storage: Storage, run: Run) -> str:
    """The digest of the run's summary; empty if it has none."""
    try:
        return sha256(storage.read_bytes(run.layout.summary))
    except MissingError:
        return ""


def _mark(record: Record) -> str:
    """What a record has that the same iteration done again has not."""
    return f"{record.epoch} {record.finished}"


def _scores(summary: Summary) -> dict[str, list[object]]:
    names = sorted(name for name in summary.after if name in ("success", "em", "f1") or name.startswith("success/"))
    return {
        "iterations": [summary.iterations] * len(names),
        "score": list(names),
        "before": [summary.before[name] for name in names],
        "after": [summary.after[name] for name in names],
    }
