"""A child that several processes of one home share, such as the Prefect server of two runs and a page.

Every user holds a write end of the keeper's pipe, a FIFO in the home: the child ends when its last user has ended, however that
ended. A lock file lets the last one to leave wait until nothing is left.
"""

import contextlib
import fcntl
import json
import os
import stat
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from nbrl.infra.errors import ServerError
from nbrl.infra.home import Home
from nbrl.infra.parse import json_value
from nbrl.infra.process.child import Child

END_S = 15.0


class Shared:
    """This process's share in the child `name` of `home`. `url` is where it serves; `owned` says whether we started it."""

    def __init__(self, home: Home, name: str, pipe: int, users: BinaryIO, url: str, owned: bool) -> None:
        self._home = home
        self._name = name
        self._pipe = pipe
        self._users = users
        self._left = False
        self.url = url
        self.owned = owned

    @classmethod
    def join(cls, home: Home, name: str, start: "Callable[[int], tuple[Child, str]]", healthy: Callable[[str], bool]) -> "Shared":
        """Join the running child, or call `start` with the read end of its pipe; `start` returns when the child serves."""
        with home.lock(name):
            fifo, record = _paths(home, name)
            users = (home.locks / f"{name}.users").open("ab")
            fcntl.flock(users, fcntl.LOCK_SH)
            pipe = _open_running(fifo, record, healthy)
            if pipe is not None:
                return cls(home, name, pipe, users, json_value(record.read_text())["url"], owned=False)
            try:
                pipe, url = _started(home, name, start)
            except BaseException:
                users.close()
                raise
            return cls(home, name, pipe, users, url, owned=True)

    @property
    def running(self) -> bool:
        """Return whether the child has not ended."""
        pipe = _open_write(_paths(self._home, self._name)[0])
        if pipe is not None:
            os.close(pipe)
        return pipe is not None

    def renew(self, start: "Callable[[int], tuple[Child, str]]", healthy: Callable[[str], bool]) -> None:
        """Call `start` as in `join` after the child's end, unless another user has done so."""
        with self._home.lock(self._name):
            pipe = _open_running(*_paths(self._home, self._name), healthy)
            if pipe is None:
                pipe, self.url = _started(self._home, self._name, start)
            os.close(self._pipe)
            self._pipe = pipe

    def leave(self) -> None:
        """Release the share; the last process to do so waits until the child has ended. Does nothing the second time."""
        if self._left:
            return
        self._left = True
        with self._home.lock(self._name):
            fifo, record = _paths(self._home, self._name)
            os.close(self._pipe)
            try:
                fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return  # others still use it
            finally:
                self._users.close()
            _wait_end(self._home, self._name, record)
            fifo.unlink(missing_ok=True)


def _started(home: Home, name: str, start: "Callable[[int], tuple[Child, str]]") -> tuple[int, str]:
    """Start the child after the last one's end; return the write end of its pipe and its URL."""
    fifo, record = _paths(home, name)
    _wait_end(home, name, record)
    fifo.unlink(missing_ok=True)
    os.mkfifo(fifo, 0o600)
    read_end = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    pipe = os.open(fifo, os.O_WRONLY | os.O_CLOEXEC)
    try:
        child, url = start(read_end)
    except BaseException:
        os.close(pipe)
        raise
    finally:
        os.close(read_end)
    record.write_text(json.dumps({"url": url, "pid": child.pid}))
    return pipe, url


def _paths(home: Home, name: str) -> tuple[Path, Path]:
    folder = home.root / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder / "users.fifo", folder / "server.json"


def _open_write(fifo: Path) -> int | None:
    """Return the FIFO's write end, if a keeper reads it."""
    try:
        descriptor = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # there is no FIFO, or no process reads it
        return None
    if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    return None


def _wait_end(home: Home, name: str, record: Path) -> None:
    """Wait until the keeper that `record` names is gone, and with it all of the child; remove the record."""
    with contextlib.suppress(OSError, ValueError, KeyError):
        pid = int(json_value(record.read_text())["pid"])
        deadline = time.monotonic() + END_S
        while Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] not in "ZX":
            if time.monotonic() > deadline:
                raise ServerError(f"{name} of {home.root} does not end (process {pid}): see its log in {home.logs}")
            time.sleep(0.02)
    record.unlink(missing_ok=True)


def _open_running(fifo: Path, record: Path, healthy: Callable[[str], bool]) -> int | None:
    pipe = _open_write(fifo)
    if pipe is None:
        return None
    with contextlib.suppress(OSError, ValueError, KeyError):
        if healthy(json_value(record.read_text())["url"]):
            os.write(pipe, b"\n")  # fails if the keeper was just leaving
            return pipe
    os.close(pipe)
    return None


class Budget:
    """At most `most` restarts in any `window_s` seconds: a fault that comes back at once must not cause restarts for ever."""

    def __init__(self, most: int, window_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.most, self.window_s, self._clock = most, window_s, clock
        self._spent: deque[float] = deque()

    def spend(self, count: int = 1) -> bool:
        """Take `count` restarts that happen now; False if there were too many of them, these included."""
        now = self._clock()
        while self._spent and self._spent[0] <= now - self.window_s:
            self._spent.popleft()
        self._spent.extend([now] * count)
        return len(self._spent) <= self.most

    def __str__(self) -> str:
        return f"{self.most} restarts in {self.window_s / 60:g} minutes"
