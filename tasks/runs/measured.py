"""The costs of one iteration, and of a whole training by it."""

import uuid
from collections.abc import Mapping

from nbrl.infra.closed import ClosedModel
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.layout.runs import RunLayout
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.lease import holder
from nbrl.tasks.runs.plan import in_words

NODES = ("rollout", "reward", "update", "publish")
FOLDER = "measurements"
RUN = "measured"  # name of the run in such a folder


class Measured(ClosedModel):
    """One iteration on this machine.

    `start_s`: until all services answer. `memory`: the most bytes of this machine that were in use meanwhile beyond those before.
    `checkpoint`: bytes; 0 if there was no update, None if the storage does not report it. `skipped` says why there was no update.
    """

    start_s: float
    metrics: Mapping[str, float]
    evaluated: int
    memory: float
    checkpoint: int | None
    skipped: str = ""

    def iteration_s(self, config: RunConfig) -> float:
        """Return the seconds of an iteration with a full batch: the measured one may have learnt from less."""
        learnt = self.metrics.get("advantage/trajectories", 0.0)
        full = config.rollout.prompts * (config.select.resample_to or config.rollout.group_size)
        lacking = full / learnt - 1 if learnt else 0.0
        return self.metrics["time/iteration"] + self.metrics.get("time/update", 0.0) * lacking

    @property
    def evaluation_s(self) -> float:
        """Return the seconds of `evaluated` held-out trajectories, sampled and scored as fast as those of the iteration."""
        seconds = self.metrics["time/rollout"] + self.metrics["time/reward"]
        return seconds / max(1.0, self.metrics["rollout/trajectories"]) * self.evaluated

    def total_s(self, config: RunConfig) -> float:
        return self.start_s + config.iterations * self.iteration_s(config) + evaluations(config) * self.evaluation_s


def evaluations(config: RunConfig) -> int:
    """Return how often a training evaluates: before the first iteration, in between, and after the last."""
    every = config.evaluate.every
    between = (config.iterations - 1) // every if every else 0
    return between + 2


def in_lines(measured: Measured, config: RunConfig) -> str:
    """Return the measurement and what follows from it, as comments of the plan."""
    nodes = ", ".join(f"{name} {measured.metrics.get(f'time/{name}', 0.0):.1f}" for name in NODES)
    learnt, all_ = (measured.metrics.get(f"{node}/trajectories", 0.0) for node in ("advantage", "rollout"))
    lines = [
        f"# measured: start {measured.start_s:.0f} s; an iteration {measured.metrics['time/iteration']:.1f} s ({nodes}), "
        f"of whose {all_:.0f} trajectories {learnt:.0f} were learnt from",
        f"# time: about {duration(measured.total_s(config))} for {config.iterations} iterations of "
        f"{duration(measured.iteration_s(config))} with a full batch, and {evaluations(config)} evaluations of "
        f"{duration(measured.evaluation_s)}",
        f"# memory: {in_words(measured.memory)} more than before at the most",
    ]
    if config.pipeline.lag:
        lines.append(
            "# pipeline: the iteration was measured without a lag; with it, rollouts run beside updates: at most this time, at "
            "least this memory"
        )
    if measured.checkpoint:
        lines.append(f"# disk: a checkpoint took {in_words(measured.checkpoint)}")
    if measured.skipped:
        lines.append(f"# no update was measured: {measured.skipped}")
    return "\n".join(lines)


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


def new_folder() -> str:
    return f"{FOLDER}/{uuid.uuid4().hex[:8]}"


def inside(settings: StorageSettings, folder: str) -> StorageSettings:
    """Return the folder as a storage."""
    return settings.model_copy(update={"root": f"{settings.root.rstrip('/')}/{folder}"})


def delete_abandoned(settings: StorageSettings) -> None:
    """Delete what measurements that were killed have left."""
    storage, layout = Storage(settings), RunLayout(RUN)
    for name in {key.split("/")[1] for key in storage.list(FOLDER)}:
        folder = Storage(inside(settings, f"{FOLDER}/{name}"))
        if folder.exists(layout.lease) and holder(folder, layout) is None:
            storage.delete(f"{FOLDER}/{name}")
