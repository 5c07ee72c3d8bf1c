"""The folder of an unfinished warm start, beside its output: what it has done so far, from which the same command goes on."""

import fcntl
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from nbrl.infra.blobs import flush_folder
from nbrl.infra.closed import ClosedModel
from nbrl.infra.manifest import file_sha256
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.layout.checkpoints import HF
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.decisive import differences
from nbrl.tasks.warmstart.settings import WarmstartSettings

PLAN, LOCK = "plan.json", ".lock"
SHOWN = 3  # differences named at once
DEFAULT_MODE = 0o644


class Identity(ClosedModel):
    """What decides the result: the settings, the agent of the training, the model to start from, and what files hold."""

    settings: WarmstartSettings
    agent: dict[str, Any]
    start: str
    files: dict[str, str]

    @classmethod
    def of(cls, settings: WarmstartSettings, training: RunConfig, start: str) -> "Identity":
        """Raises ConfigError if a file of demonstrations is not there. `start` is the digest of the model."""
        try:
            files = {str(path): file_sha256(path) for source in settings.sources.values() for path in source.files()}
        except OSError as error:
            raise ConfigError(f"{error.filename} cannot be read: {error.strerror}") from error
        return cls(settings=settings, agent=training.agent.model_dump(mode="json"), start=start, files=files)

    def differences(self, now: "Identity") -> list[str]:
        """One phrase for each."""
        found = differences(self.settings, now.settings, "unfinished warm start")
        found += ["the agent of the training is another"] * (self.agent != now.agent)
        found += ["the model to start from is another"] * (self.start != now.start)
        return found + ["a file of demonstrations holds something else"] * (self.files != now.files and not found)


class Block(NamedTuple):
    """Steps of a phase that one order takes."""

    phase: str
    steps: int


class WarmstartPlan(ClosedModel):
    """All blocks, and the demonstrations of each phase: how many, and how many others could not be used."""

    identity: Identity
    blocks: list[Block]
    demonstrations: dict[str, tuple[int, int]]

    @property
    def steps(self) -> int:
        return sum(block.steps for block in self.blocks)


class WorkFolder:
    """`storage` is the folder, whose objects are whole or absent: the plan, the orders' tables, results and checkpoints."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.path = unfinished(out)
        self.storage = Storage(StorageSettings(root=str(self.path)))

    @property
    def fresh(self) -> Path:
        """The model that was made from nothing."""
        return self.path / "fresh"

    def is_others(self) -> bool:
        """Return whether somebody else's files are there: a warm start begins with its lock."""
        return self.path.is_dir() and any(self.path.iterdir()) and not (self.path / LOCK).exists()

    def plan(self) -> WarmstartPlan | None:
        """Return what is to be done, once that is known. Raises ConfigError if the file is none of this release's."""
        if not self.storage.exists(PLAN):
            return None
        try:
            return WarmstartPlan.model_validate(self.storage.read_json(PLAN))
        except ValidationError as error:
            raise ConfigError(f"{self.path} is no warm start that this release can continue; delete it to begin anew") from error

    def begin(self, plan: WarmstartPlan) -> None:
        """From now on the folder is this warm start's."""
        self.storage.create_json(PLAN, plan.model_dump(mode="json"))

    def trajectories(self, block: int) -> str:
        """Key of a table of a block's order."""
        return f"orders/{block:04d}/trajectories.parquet"

    def advantages(self, block: int) -> str:
        return f"orders/{block:04d}/advantages.parquet"

    def checkpoint(self, block: int) -> str:
        """Key of the folder of a block's checkpoint."""
        return f"checkpoints/{block:04d}"

    def result(self, block: int) -> dict[str, float] | None:
        """Return the metrics of a block; None if it is not trained yet."""
        key = _result(block)
        return dict(self.storage.read_json(key)) if self.storage.exists(key) else None

    def keep(self, block: int, metrics: dict[str, float]) -> None:
        """Record that a block is trained, and delete the checkpoint before its own."""
        self.storage.write_json(_result(block), metrics)
        if block:
            shutil.rmtree(self.path / self.checkpoint(block - 1), ignore_errors=True)

    def check_whole(self, plan: WarmstartPlan) -> None:
        """Raises ConfigError if somebody deleted what the next block needs: its tables, and the checkpoint it goes on from."""
        done = [block for block in range(len(plan.blocks)) if self.result(block) is not None]
        following = len(done)
        needed = [_result(block) for block in range(max(done, default=0))]
        needed += [self.trajectories(following), self.advantages(following)] if following < len(plan.blocks) else []
        needed += [self.checkpoint(following - 1)] if following else []
        if gone := [path for path in (self.path / key for key in needed) if not path.exists()]:
            raise ConfigError(
                f"{gone[0]} of an unfinished warm start is gone; bring it back, or delete {self.path} to begin anew"
            )

    def finish(self, block: int) -> None:
        """Make the model of the last block the output, and delete everything else. Raises ConfigError if the output exists."""
        check_free(self.out)
        made = self.path / self.checkpoint(block) / HF
        for file in made.iterdir():
            file.chmod(DEFAULT_MODE)
        try:
            made.rename(self.out)
        except OSError as error:
            raise ConfigError(f"{self.out} could not be made: {error.strerror}; the policy is in {made}") from error
        flush_folder(self.out.parent)
        shutil.rmtree(self.path, ignore_errors=True)


def _result(block: int) -> str:
    return f"results/{block:04d}.json"


def unfinished(out: Path) -> Path:
    return out.with_name(f"{out.name}.unfinished")


def check_free(out: Path) -> None:
    """Raises ConfigError if there is something already, or nothing can have this name."""
    try:
        there = out.exists() or out.is_symlink()
        linked = unfinished(out).is_symlink()
    except (OSError, ValueError) as error:
        raise ConfigError(f"{str(out)[:200]!r} can be no folder: {error}; choose another name") from error
    if there:
        raise ConfigError(f"{out} exists; name a folder that does not, nothing is overwritten")
    if linked:
        raise ConfigError(f"{unfinished(out)} is a link; take it away, or name another folder")


def check(out: Path, wanted: Identity) -> None:
    """Raises ConfigError if the output exists, or another warm start, only a part of this one or something else is there."""
    check_free(out)
    if WorkFolder(out).is_others():
        raise ConfigError(f"{unfinished(out)} holds files that are of no warm start; take it away, or name another folder")
    plan = WorkFolder(out).plan()
    if plan is not None and (differing := plan.identity.differences(wanted)):
        raise ConfigError(
            f"{unfinished(out)} holds another warm start: {'; '.join(differing[:SHOWN])}. Use the same settings to go on with "
            "it, delete it to begin anew, or name another folder"
        )
    if plan is not None:
        WorkFolder(out).check_whole(plan)


@contextmanager
def opened(out: Path, wanted: Identity) -> Iterator[WorkFolder]:
    """The work folder, for this process alone. Nothing of it stays if it ends before there is a plan.

    Raises ConfigError as `check` does, or if another process works in it.
    """
    check(out, wanted)
    work = WorkFolder(out)
    try:
        work.path.mkdir(parents=True, exist_ok=True)
        lock = (work.path / LOCK).open("w")
    except OSError as error:
        raise ConfigError(f"{work.path} cannot be written to: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ConfigError(f"another process makes {out}; wait for it, or name another folder") from error
        try:
            yield work
        finally:
            if not (work.path / PLAN).exists():
                shutil.rmtree(work.path, ignore_errors=True)
