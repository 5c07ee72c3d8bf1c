"""Delivers a run from its storage to MLflow: everything in order, each part once, whichever process delivered the parts before
it.

What was delivered is known to MLflow itself: a tag counts the iterations. Metrics that a delivery that was cut off left of the
next one are logged again: MLflow's database keeps a point with the same step, value and time once. Traces are looked for before
they are written. Nothing of a run depends on MLflow, so it can be rebuilt from the storage at any time.
"""

import tempfile
from pathlib import Path

import yaml

from nbrl.infra.errors import InfraError, MissingError, ServerError
from nbrl.infra.storage import Storage, sha256
from nbrl.infra.tracking import Tracking
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.layout.stages import is_trajectories
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.ending import SILENT, Ending
from nbrl.tasks.runs.epochs import without_passwords
from nbrl.tasks.runs.history import Record, Summary, read_record
from nbrl.tasks.runs.lease import last_ending
from nbrl.tasks.runs.run import Run
from nbrl.tasks.runs.scope import Artifact
from nbrl.tasks.tracking.checkpoints import Checkpoints
from nbrl.tasks.tracking.evaluations import FOLDER, PARENT_ID, log_answers
from nbrl.tasks.tracking.names import shown, shown_name
from nbrl.tasks.tracking.parameters import facts, identity, log_datasets, parameters
from nbrl.tasks.tracking.steps import Steps, eval_metrics
from nbrl.tasks.tracking.traces import choose, log_traces, samples

DELIVERED, SUMMARY = "nbrl.delivered", "nbrl.summary"
EVALUATED = shown_name("eval/em")  # every evaluation has it; it is the last metric of an evaluation in MLflow
OF_MODELS = ("more/reward", "more/eval")  # groups that a checkpoint shows too, and so it does these of the first group:
MAIN_OF_MODELS = ("main/held_out_success", "main/success", "main/reward")
TABLE, PICTURE, SETTINGS = "held-out", "learning-curve.png", "config.yaml"


class MlflowSync:
    """The delivery of one run. Every method raises what MLflow or the storage raise; the next call goes on from there."""

    def __init__(self, config: RunConfig, storage: Storage, run: Run, tracking: Tracking) -> None:
        self._config, self._storage, self._run, self._tracking = config, storage, run, tracking
        self._begun = False
        self._doubtful = True  # whether an earlier delivery may have left a part of the next iteration
        self._steps = Steps(run)
        self._evaluated: set[int] = set()  # steps
        self._checkpoints = Checkpoints(storage, run, tracking)

    @property
    def delivered(self) -> int:
        """Return the number of delivered iterations."""
        return self._steps.count

    def catch_up(self) -> None:
        """Deliver all that the storage has and MLflow has not."""
        if not self._begun:
            self._begin()
        self._begun = False  # unless all of it succeeds: the next call then looks for what this one left
        if not self.delivered:  # pages that compare runs open on the metric that came first
            self._evaluations()
        while (record := read_record(self._storage, self._run, self.delivered)) is not None:
            self._iteration(record)
            self._steps.add(record)
            self._tracking.set_tag(DELIVERED, f"{self.delivered} {_record_id(record)}")
            self._doubtful = False
        self._evaluations()
        self._checkpoints.update_places()
        self._summary()
        self._begun = True

    def end(self, ending: Ending, ended: float | None = None) -> None:
        """Register the best and the last checkpoint and end MLflow's run after all was delivered.

        `ended` is in seconds since 1970, by default now. The storage notes that a finished run is complete there.
        """
        self._checkpoints.register(self._steps.policies)
        self._tracking.end(ending.status, ending.reason, ended)
        if ending.status == "FINISHED" and (mark := _summary_mark(self._storage, self._run)):
            self._storage.write_json(self._run.layout.delivered, {"summary": mark, "uri": self._tracking.uri})

    def is_begun(self) -> bool:
        """Return whether MLflow has the run."""
        return bool(self._tracking.id_of(self._run.name, identity(self._run)))

    def is_finished(self) -> bool:
        """Return whether the run has a summary."""
        return bool(_summary_mark(self._storage, self._run))

    def is_complete(self) -> bool:
        """Return whether a delivery to this MLflow noted that it delivered the finished run."""
        try:
            noted = self._storage.read_json(self._run.layout.delivered)
        except MissingError:
            return False
        return noted == {"summary": _summary_mark(self._storage, self._run), "uri": self._tracking.uri}

    def behind(self) -> int:
        """Return the number of recorded iterations that are not delivered."""
        count = 0
        while self._storage.exists(self._run.layout.iteration(self.delivered + count).record):
            count += 1
        return count

    def last_ending(self) -> tuple[Ending, float | None]:
        """Return how the newest start of the run ended, by its storage, and when; where it says nothing, by its summary."""
        ending, when = last_ending(self._storage, self._run.layout)
        when = when or max(made.finished for made in self._steps.policies.values()) or None
        return (Ending("FINISHED") if ending.reason == SILENT and self.is_finished() else ending), when

    def _begin(self) -> None:
        self._open()
        delivered, _, mark = self._tracking.tag(DELIVERED).partition(" ")
        records = [read_record(self._storage, self._run, iteration) for iteration in range(int(delivered or 0))]
        if records and (records[-1] is None or mark != _record_id(records[-1])):
            self._tracking.start_over()  # iterations that MLflow has were done again
            self._open()
            records = []
        self._steps = Steps(self._run)
        for record in filter(None, records):
            self._steps.add(record)
        self._evaluated = {step for step, _ in self._tracking.history(EVALUATED)}
        self._checkpoints.begin()
        self._begun = self._doubtful = True

    def _open(self) -> None:
        run, tracking = self._run, self._tracking
        known, started = facts(self._storage, run.layout, run.recipe, self._config.policy.path)
        tracking.start_run(run.name, parameters(self._config), identity(run), known, started)
        tracking.adopt({PARENT_ID: run.run_id})  # evaluations that were there before it
        settings = yaml.safe_dump(self._config.model_dump(mode="json"), sort_keys=False)
        tracking.log_text(without_passwords(settings), SETTINGS)
        log_datasets(self._storage, run, list(self._config.environments), tracking)

    def _iteration(self, record: Record) -> None:
        """Deliver checkpoint, traces and metrics."""
        if self._steps.updated(record):
            self._checkpoints.log(record)
        self._traces(record)
        self._metrics(dict(record.metrics), record.iteration + 1, record.finished)

    def _metrics(self, metrics: dict[str, float], step: int, finished: float) -> None:
        """Log metrics of a step, those of checkpoints last and with the one that was made at this step."""
        found = shown(metrics, self._config.environments)
        metrics = {name: found[name] for name in sorted(found, key=EVALUATED.__eq__)}
        model = self._checkpoints.at(step)
        of_model = {name: value for name, value in metrics.items() if model and _of_model(name)}
        rest = {name: value for name, value in metrics.items() if name not in of_model}
        if rest:
            self._tracking.log_metrics(rest, step, finished)
        if of_model:
            self._tracking.log_metrics(of_model, step, finished, model)

    def _traces(self, record: Record) -> None:
        if not self._config.record.traces:
            return
        first = record.rounds[0]
        rewards = self._storage.read_table(first.rewards.path, first.rewards.digest).to_pylist()
        prompts = self._storage.read_table(first.prompts.path, first.prompts.digest)
        answers = dict(zip(prompts["group"].to_pylist(), prompts["answers"].to_pylist(), strict=True))
        trajectories = self._storage.read_table(first.trajectories.path, first.trajectories.digest)
        tags = {"run": self._run.name, "iteration": str(record.iteration)}
        chosen = samples(trajectories, choose(rewards, self._config.record.traces), answers)
        log_traces(self._tracking, chosen, tags, self._doubtful)

    def _evaluations(self) -> None:
        """Deliver the new evaluations: table and traces first, EVALUATED last."""
        tables: set[str] | None = None
        for step, weights, result in self._steps.evaluations(self._storage, self._evaluated):
            tables = self._tracking.tables(FOLDER) if tables is None else tables
            self._answers(weights.updates, result.artifact, tables)
            self._metrics(eval_metrics(result), step, result.finished)
            self._evaluated.add(step)

    def _answers(self, updates: int, result: Artifact, tables: set[str]) -> None:
        storage, name = self._storage, f"{FOLDER}/{updates:06d}"
        key = next(filter(is_trajectories, result.parts))
        trajectories, rewards = storage.read_table(key, result.parts[key]), storage.read_table(result.path, result.digest)
        tags = {"run": self._run.name, "evaluation": str(updates)}
        log_answers(self._tracking, storage, self._run, trajectories, rewards, self._config.record.traces, name, tags, tables)

    def _summary(self) -> None:
        """Deliver the table of held-out scores, and the learning curve."""
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


def deliver(sync: MlflowSync, tracking: Tracking) -> int:
    """Deliver a run that no process trains, and end it in MLflow as what it is; returns how many iterations MLflow then has.

    Raises ServerError and StorageError.
    """
    try:
        sync.catch_up()
        sync.end(*sync.last_ending())
    except (InfraError, ConfigError):
        raise
    except Exception as error:
        raise ServerError(f"MLflow at {tracking.uri} took {sync.delivered} iterations, then no more: {error}") from error
    return sync.delivered


def _summary_mark(storage: Storage, run: Run) -> str:
    """Return the digest of the run's summary; empty if it has none."""
    try:
        return sha256(storage.read_bytes(run.layout.summary))
    except MissingError:
        return ""


def _record_id(record: Record) -> str:
    """Return what distinguishes a record from that of a repeated iteration."""
    return f"{record.epoch} {record.finished}"


def _of_model(metric: str) -> bool:
    return metric in MAIN_OF_MODELS or metric.rpartition("/")[0] in OF_MODELS


def _scores(summary: Summary) -> dict[str, list[object]]:
    labels = {*summary.before, *summary.after}
    names = sorted(name for name in labels if name in ("success", "em", "f1") or name.startswith("success/"))
    return {
        "iterations": [summary.iterations] * len(names),
        "score": list(names),
        "before": [summary.before.get(name) for name in names],
        "after": [summary.after.get(name) for name in names],
    }
