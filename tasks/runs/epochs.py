"""Epochs: every process that trains a run takes one, and only the process of the newest epoch may record an iteration.

What an epoch makes lies below its own name, so that processes that train one run by mistake never write the same object. The
name has a random part: epochs need nothing of a storage but that it lists what was written.
"""

import getpass
import re
import shlex
import socket
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from nbrl.infra.closed import ClosedModel
from nbrl.infra.errors import DamagedError, MissingError
from nbrl.infra.process.identity import identity
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import TakenOverError
from nbrl.tasks.layout.runs import RunLayout

LONGEST = 2000
GIT_S = 5.0
PASSWORD = re.compile(r"(://[^/\s:@]+):[^/\s@]+@")  # of an address
NAME = re.compile(r"e([0-9]{1,20})(?:-[0-9a-z]+)?\.json")


def without_passwords(text: str) -> str:
    """Return the text with `***` for the passwords of addresses in it."""
    return PASSWORD.sub(r"\1:***@", text)


def user() -> str:
    """Return the user's name; empty where the system knows none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return ""


def command() -> str:
    """Return the command line of this process, without the folder of its program and without passwords."""
    if not sys.argv or not sys.argv[0]:
        return ""
    return without_passwords(shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]))[:LONGEST]


def commit() -> str:
    """Return the commit that is checked out in the working folder; empty if it is in no git checkout. Starts git."""
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=GIT_S, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    digest = done.stdout.strip()
    return digest if done.returncode == 0 and re.fullmatch(r"[0-9a-f]{40,64}", digest) else ""


class Epoch(ClosedModel):
    """The process that took an epoch, the time (`started` in seconds since 1970), and the settings of that start.

    `user` began it with `command` in a checkout of `commit`; they are empty where that is unknown.
    """

    name: str
    host: str
    process: str
    started: float
    version: str
    settings: dict[str, Any] | None = None
    user: str = ""
    command: str = ""
    commit: str = ""


def take(storage: Storage, run: RunLayout, settings: dict[str, Any] | None = None, commit: str = "") -> Epoch:
    """Take the next epoch of a run, for a start with these settings in a checkout of this commit."""
    earlier = newest(storage, run)
    number = int(earlier[1:].partition("-")[0]) + 1 if earlier else 1
    epoch = Epoch(
        name=f"e{number:04d}-{uuid.uuid4().hex[:6]}",
        host=socket.gethostname(),
        process=identity(),
        started=time.time(),
        version=version("nbrl"),
        settings=settings,
        user=user(),
        command=command(),
        commit=commit,
    )
    storage.create_json(run.epoch(epoch.name), epoch.model_dump())
    return epoch


def newest(storage: Storage, run: RunLayout) -> str:
    """Name of the newest epoch of a run; empty if it has none."""
    keys = _keys(storage, run)
    return keys[-1].rpartition("/")[2].removesuffix(".json") if keys else ""


def _keys(storage: Storage, run: RunLayout) -> list[str]:
    """Return those of the epochs of a run, in their order; a file of another name is none."""
    matches = [(match, key) for key in storage.list(run.epochs) if (match := NAME.fullmatch(key.rpartition("/")[2]))]
    return [key for _, key in sorted((int(match[1]), key) for match, key in matches)]


def first_and_newest(storage: Storage, run: RunLayout) -> tuple[Epoch, Epoch] | None:
    """Return the first and the newest start of a run; None if they are unknown."""
    keys = _keys(storage, run)
    try:
        return (_read(storage, keys[0]), _read(storage, keys[-1])) if keys else None
    except (MissingError, DamagedError, ValidationError):
        return None


def epochs_of(storage: Storage, run: RunLayout) -> list[Epoch]:
    """Return all starts of a run that are known, the first one first."""
    found = list[Epoch]()
    for key in _keys(storage, run):
        with suppress(MissingError, DamagedError, ValidationError):
            found.append(_read(storage, key))
    return found


def _read(storage: Storage, key: str) -> Epoch:
    return Epoch.model_validate(storage.read_json(key))


def newest_settings(storage: Storage, run: RunLayout) -> dict[str, Any] | None:
    """Return the settings of the newest start; None if they are unknown."""
    if not (name := newest(storage, run)):
        return None
    try:
        return Epoch.model_validate(storage.read_json(run.epoch(name))).settings
    except (MissingError, DamagedError, ValidationError):
        return None


def check_newest(storage: Storage, run: RunLayout, epoch: str) -> None:
    """Raises TakenOverError if another process has taken a newer epoch."""
    taken = newest(storage, run)
    if taken == epoch:
        return
    if not taken:
        raise TakenOverError(f"{run.title} was deleted while this process worked on it; nothing more was written")
    try:
        host = _read(storage, run.epoch(taken)).host
    except (MissingError, DamagedError, ValidationError):
        host = "another machine"
    raise TakenOverError(
        f"{run.title} was taken over by a process on {host} (epoch {taken}); this process (epoch {epoch}) has "
        "stopped, and nothing of it counts since"
    )
