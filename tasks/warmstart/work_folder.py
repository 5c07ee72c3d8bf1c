"""The folder of an unfinished warm start, beside its output: the steps that are finished, from which the same command goes on."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field

from nbrl.infra.blobs import flush_folder
from nbrl.infra.closed import ClosedModel
from nbrl.infra.manifest import MANIFEST, file_sha256
from nbrl.infra.storage import Storage, StorageSettings, sha256
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.layout.checkpoints import HF
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.decisive import decisive
from nbrl.tasks.runs.steps import StepRecord, check_work_folder, folder_steps, work_folder
from nbrl.tasks.warmstart.settings import WarmstartSettings

PLAN, FINISHED = "plan.json", "finished.json"
WHAT = "warm start"
DEFAULT_MODE = 0o644


def identity(settings: WarmstartSettings, training: RunConfig, start: str) -> dict[str, Any]:
    """Return what decides the result, by dotted key: settings, the training's agent, the digests of the model and of files.

    Raises ConfigError if a file of demonstrations is not there.
    """
    agent = {f"the training's agent.{key}": value for key, value in decisive(training.agent, all_=True).items()}
    try:
        found = {name: file for source in settings.sources.values() for name, file in source.files().items()}
        files = {f"SHA-256 of {name}": file_sha256(file) for name, file in found.items()}
    except OSError as error:
        raise ConfigError(f"{error.filename} cannot be read: {error.strerror}") from error
    return decisive(settings) | agent | {"digest of the model to start from": start} | files


class Block(NamedTuple):
    """Steps of a phase that one order takes."""

    phase: str
    steps: int


class WarmstartPlan(ClosedModel):
    """All blocks, and the demonstrations of each phase: how many, and how many others could not be used."""

    blocks: list[Block]
    demonstrations: dict[str, tuple[int, int]]

    @property
    def steps(self) -> int:
        return sum(block.steps for block in self.blocks)


class PlanRecord(StepRecord):
    """The tables of all orders, and the plan."""

    plan: WarmstartPlan


class BlockRecord(StepRecord):
    """A trained block: the manifest of its checkpoint, and the last loss of each phase."""

    losses: dict[str, float]


class EndRecord(BlockRecord):
    """The number of the block that was the last one, whose model is the result."""

    block: int = Field(ge=0)


class WorkFolder:
    """`storage` is the folder, whose objects are whole or absent: the plan, the orders' tables, results and checkpoints."""

    def __init__(self, out: Path, say: Callable[[str], None] = lambda _: None) -> None:
        self.out, self.path = out, unfinished(out)
        self.storage = Storage(StorageSettings(root=str(self.path)))
        self._plans = folder_steps(self.storage, PlanRecord, say)
        self._blocks = folder_steps(self.storage, BlockRecord, say)
        self._ends = folder_steps(self.storage, EndRecord, say)

    @property
    def fresh(self) -> Path:
        """Return the model that was made from nothing."""
        return self.path / "fresh"

    def plan(self) -> WarmstartPlan | None:
        """Return what is to be done, once that is known and while all tables of its orders are whole."""
        record = self._plans.find(PLAN, "the recording of demonstrations")
        return None if record is None else record.plan

    def begin(self, plan: WarmstartPlan, tables: Mapping[str, str]) -> None:
        """Record the plan. `tables` are the digests of the tables of its orders, by key."""
        self._plans.keep(PLAN, PlanRecord(objects=dict(tables), plan=plan))

    def trajectories(self, block: int) -> str:
        """Return the key of a table of a block's order."""
        return f"orders/{block:04d}/trajectories.parquet"

    def advantages(self, block: int) -> str:
        return f"orders/{block:04d}/advantages.parquet"

    def checkpoint(self, block: int) -> str:
        """Return the key of the folder of a block's checkpoint."""
        return f"checkpoints/{block:04d}"

    def trained(self, plan: WarmstartPlan) -> tuple[int, dict[str, float]]:
        """Return how many blocks are trained, and the last loss of each phase; none is without a checkpoint to go on from."""
        for block in reversed(range(len(plan.blocks))):
            if (record := self._blocks.find(_result(block), f"the training up to block {block}")) is not None:
                return block + 1, record.losses
        return 0, {}

    def keep(self, block: int, losses: Mapping[str, float]) -> None:
        """Record that a block is trained, and delete result and checkpoint of the one before."""
        manifest = f"{self.checkpoint(block)}/{MANIFEST}"
        digest = sha256(self.storage.read_bytes(manifest))
        self._blocks.keep(_result(block), BlockRecord(objects={manifest: digest}, losses=dict(losses)))
        if block:
            self.storage.delete(self.checkpoint(block - 1))
            self.storage.delete(_result(block - 1))

    def end(self, block: int, losses: Mapping[str, float]) -> None:
        """Record that this block was the last one."""
        self._ends.keep(FINISHED, EndRecord(block=block, losses=dict(losses)))

    def finish(self) -> dict[str, float] | None:
        """Make the model of the last block the output, and delete everything else; return the losses. None before `end`.

        Raises ConfigError if the output exists.
        """
        record = self._ends.find(FINISHED, "the end of the training")
        if record is None:
            return None
        made = self.path / self.checkpoint(record.block) / HF
        if made.exists():  # else a process that was killed here made it the output
            if self.out.exists():
                raise ConfigError(f"{self.out} exists; nothing is overwritten, the policy is in {made}")
            for file in made.iterdir():
                file.chmod(DEFAULT_MODE)
            try:
                made.rename(self.out)
            except OSError as error:
                raise ConfigError(f"{self.out} could not be made: {error.strerror}; the policy is in {made}") from error
            flush_folder(self.out.parent)
        shutil.rmtree(self.path / "checkpoints", ignore_errors=True)
        shutil.rmtree(self.path, ignore_errors=True)
        return record.losses


def _result(block: int) -> str:
    return f"results/{block:04d}.json"


def unfinished(out: Path) -> Path:
    return out.with_name(f"{out.name}.unfinished")


def check_free(out: Path) -> None:
    """Raises ConfigError if there is something already that a warm start did not just make, or nothing can have this name."""
    try:
        taken = (out.exists() or out.is_symlink()) and not (unfinished(out) / FINISHED).exists()
        linked = unfinished(out).is_symlink()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{str(out)[:200]!r} can be no folder: {error}; choose another name") from error
    if taken:
        raise ConfigError(f"{out} exists; name a folder that does not, nothing is overwritten")
    if linked:
        raise ConfigError(f"{unfinished(out)} is a link; take it away, or name another folder")


def check(out: Path, wanted: Mapping[str, Any]) -> None:
    """Raises ConfigError if the output exists, or another warm start or something else is in its work folder."""
    check_free(out)
    check_work_folder(unfinished(out), wanted, WHAT)


@contextmanager
def opened(out: Path, wanted: Mapping[str, Any], say: Callable[[str], None] = lambda _: None) -> Iterator[WorkFolder]:
    """Yield the work folder, for this process alone. Nothing of it stays if it ends before there is a plan.

    Raises ConfigError as `check` does, or if another process works in it.
    """
    check_free(out)
    with work_folder(unfinished(out), wanted, WHAT):
        try:
            yield (work := WorkFolder(out, say))
        finally:
            if work.path.exists() and not (work.path / PLAN).exists():
                shutil.rmtree(work.path, ignore_errors=True)
