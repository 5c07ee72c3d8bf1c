"""The folder of an unfinished warm start, beside its output: what it has done so far, from which the same command goes on."""

import fcntl
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nbrl.infra.blobs import flush_folder
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.layout import HF
from nbrl.tasks.runs.decisive import differences
from nbrl.tasks.warmstart.settings import WarmstartSettings

IDENTITY, PLAN, LOCK = "warmstart.json", "plan.json", ".lock"


class WorkFolder:
    """`storage` has the small files, of which each is whole or absent."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.path = unfinished(out)
        self.storage = Storage(StorageSettings(root=str(self.path)))

    @property
    def fresh(self) -> Path:
        """The model that was made from nothing."""
        return self.path / "fresh"

    def order(self, block: int) -> Path:
        """Folder of the tables of a block's order."""
        return self.path / "orders" / f"{block:04d}"

    def checkpoint(self, block: int) -> Path:
        return self.path / "checkpoints" / f"{block:04d}"

    def result(self, block: int) -> dict[str, float] | None:
        """The metrics of a block that was trained; None of one that was not, or whose successor's checkpoint is all there is."""
        key = _result(block)
        return dict(self.storage.read_json(key)) if self.storage.exists(key) else None

    def keep(self, block: int, metrics: dict[str, float]) -> None:
        """Record that a block is trained, and delete the checkpoint before its own."""
        self.storage.write_json(_result(block), metrics)
        if block:
            shutil.rmtree(self.checkpoint(block - 1), ignore_errors=True)

    def finish(self, block: int) -> None:
        """Make the model of the last block the output, and delete everything else."""
        self.out.parent.mkdir(parents=True, exist_ok=True)
        (self.checkpoint(block) / HF).rename(self.out)
        flush_folder(self.out.parent)
        shutil.rmtree(self.path, ignore_errors=True)


def _result(block: int) -> str:
    return f"results/{block:04d}.json"


def unfinished(out: Path) -> Path:
    return out.with_name(f"{out.name}.unfinished")


def check(out: Path, settings: WarmstartSettings, agent: dict[str, Any], start: str) -> None:
    """Raises ConfigError if the output exists, or another warm start has begun there. `start` is the model's digest."""
    if out.exists() or out.is_symlink():
        raise ConfigError(f"{out} exists; name a folder that does not, nothing is overwritten")
    storage = Storage(StorageSettings(root=str(unfinished(out))))
    if not storage.exists(IDENTITY):
        return
    began = storage.read_json(IDENTITY)
    differing = differences(WarmstartSettings.model_validate(began["settings"]), settings, "unfinished warm start")
    differing += ["the agent of the training is another"] * (began["agent"] != agent)
    differing += ["the model to start from is another"] * (began["start"] != start)
    if differing:
        raise ConfigError(
            f"{unfinished(out)} holds another warm start: {'; '.join(differing[:3])}. Use the same settings to go on with it, "
            "delete it to begin anew, or name another folder"
        )


@contextmanager
def opened(out: Path, settings: WarmstartSettings, agent: dict[str, Any], start: str) -> Iterator[WorkFolder]:
    """The work folder of this process alone. Raises ConfigError as `check` does, or if another process works in it."""
    check(out, settings, agent, start)
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
        described = {"settings": settings.model_dump(mode="json"), "agent": agent, "start": start}
        work.storage.create_json(IDENTITY, json.loads(json.dumps(described)))
        yield work
