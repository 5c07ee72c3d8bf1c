"""Files in and out of a kernel's workspace, through its folder's descriptor.

The kernel may run meanwhile and means harm: names, kinds and contents are what it likes and change while they are read. So
nothing is opened by a path from the host's root, no link is followed, only regular files are read, and all is counted.
"""

import ctypes
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import PurePosixPath

from nbrl.sandbox.errors import SandboxError
from nbrl.sandbox.openat2 import open_beneath
from nbrl.sandbox.settings import KernelLimits

_DEPTH = 8
_ENTRIES = 10_000
_LEFT_OUT = 1_000
_NAME_BYTES = 200
_BACKLOG = 64

_libc = ctypes.CDLL(None)


@dataclass(frozen=True)
class File:
    """A regular file as it was read; `path` is relative, of plain printable parts."""

    path: str
    data: bytes


@dataclass
class Collected:
    """The collected files, and those left out as (path, reason)."""

    files: list[File] = field(default_factory=list)
    left_out: list[tuple[str, str]] = field(default_factory=list)


class Workspace:
    """One kernel's workspace. It outlives its kernel, so that the files of one that died can be collected, until `close`."""

    def __init__(self, folder: int, settings: KernelLimits) -> None:
        self._folder = os.dup(folder)
        self._settings = settings

    def close(self) -> None:
        """Release the workspace; may be called twice."""
        if self._folder >= 0:
            os.close(self._folder)
            # The number may be another kernel's from now on.
            self._folder = -1

    def put(self, path: str, data: bytes) -> None:
        """Write a new file, readable and writable by cells. Folders on the way are made.

        Raises ValueError for a path that is not plain and relative, SandboxError if it exists or there is no space.
        """
        *folders, name = _plain_parts(path)
        try:
            with ExitStack() as opened, self._as_owner():
                folder = self._folder
                for part in folders:
                    folder = _enter(folder, part)
                    opened.callback(os.close, folder)
                number = open_beneath(folder, name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                with os.fdopen(number, "wb") as file:
                    file.write(data)
        except OSError as error:
            raise SandboxError(f"{path} could not be put into the workspace: {error.strerror}") from error

    def listen(self, name: str) -> socket.socket:
        """Return a socket that listens in the workspace under a plain name. Raises SandboxError if there can be none."""
        (part,) = _plain_parts(name)
        listener = socket.socket(socket.AF_UNIX)
        try:
            with self._as_owner():
                listener.bind(f"/proc/self/fd/{self._folder}/{part.decode()}")
            listener.listen(_BACKLOG)
        except OSError as error:
            listener.close()
            raise SandboxError(f"there can be no socket in the workspace: {error.strerror}") from error
        return listener

    def read(self, path: str) -> bytes:
        """Return the bytes of the regular file `path`, at most `collect_file_bytes`.

        Raises ValueError for a path that is not plain and relative, SandboxError if the file does not exist or is too large.
        """
        parts = _plain_parts(path)
        try:
            with self._as_owner():
                return _read(self._folder, b"/".join(parts), self._settings.collect_file_bytes)
        except ValueError as error:
            raise SandboxError(f"{path} could not be read: {error}") from None
        except OSError as error:
            raise SandboxError(f"{path} could not be read: {error.strerror}") from error

    @contextmanager
    def _as_owner(self) -> Iterator[None]:
        """Use files as the cells' own uid, in this thread: the workspace takes no other, and root has rights in excess."""
        uid = self._settings.unprivileged_uid
        if os.geteuid() != 0:
            yield
            return
        try:
            _libc.setfsgid(uid)
            _libc.setfsuid(uid)
            yield
        finally:
            _libc.setfsuid(0)
            _libc.setfsgid(0)

    def collect(self) -> Collected:
        """Return the regular files of the workspace, smallest path first, within the limits of the settings."""
        with self._as_owner():
            return self._collect()

    def _collect(self) -> Collected:
        settings, collected = self._settings, Collected()
        left = settings.collect_bytes
        for path, reason in _walk(self._folder):
            shown = _shown(path)
            if reason is None and len(collected.files) >= settings.collect_files:
                reason = f"more than {settings.collect_files} files"
            if reason is None and os.fsencode(shown) != path:
                reason = "its name is not plain text"
            if reason is None:
                try:
                    data = _read(self._folder, path, min(settings.collect_file_bytes, left))
                    left -= len(data)
                    collected.files.append(File(shown, data))
                    continue
                except (OSError, ValueError) as error:
                    reason = str(error.strerror if isinstance(error, OSError) else error)
            if len(collected.left_out) < _LEFT_OUT:
                collected.left_out.append((shown, reason))
        return collected


def _enter(folder: int, name: bytes) -> int:
    """Return a descriptor of the folder `name` in `folder`, made when it is not there."""
    with suppress(FileExistsError):
        os.mkdir(name, 0o700, dir_fd=folder)
    return open_beneath(folder, name, os.O_RDONLY | os.O_DIRECTORY)


def _plain_parts(path: str) -> list[bytes]:
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or not path.isprintable() or len(path.encode()) > _NAME_BYTES:
        raise ValueError(f"{path!r} is not a path in the workspace: give a short relative one, without ..")
    return [part.encode() for part in parts]


def _shown(path: bytes) -> str:
    text = path.decode(errors="replace")
    return "".join(char if char.isprintable() else "\ufffd" for char in text)


def _walk(top: int) -> Iterator[tuple[bytes, str | None]]:
    """Yield paths below the folder `top`, with the reason why one is not a file to be read."""
    waiting = [b""]
    seen = 0
    while waiting:
        prefix = waiting.pop()
        try:
            for name, mode in _entries(top, prefix or b".", _ENTRIES - seen):
                seen += 1
                path = prefix + name
                if stat.S_ISREG(mode):
                    yield path, None
                elif not stat.S_ISDIR(mode):
                    yield path, "not a regular file"
                elif path.count(b"/") >= _DEPTH:
                    yield path, f"deeper than {_DEPTH} folders"
                else:
                    waiting.append(path + b"/")
        except OSError as error:
            yield prefix or b".", str(error.strerror)
        if seen >= _ENTRIES:
            yield prefix or b".", f"more than {_ENTRIES} entries"
            return


def _entries(top: int, path: bytes, limit: int) -> list[tuple[bytes, int]]:
    """Return the first `limit` names of a folder and their modes, sorted; entries that vanish meanwhile are skipped."""
    folder = open_beneath(top, path, os.O_RDONLY | os.O_DIRECTORY)
    names = []
    try:
        with os.scandir(folder) as entries:
            for entry in islice(entries, limit):
                with suppress(FileNotFoundError):
                    names.append((os.fsencode(entry.name), entry.stat(follow_symlinks=False).st_mode))
    finally:
        os.close(folder)
    return sorted(names)


def _read(top: int, path: bytes, limit: int) -> bytes:
    """Read a regular file of at most `limit` bytes. Raises ValueError if it is anything else."""
    descriptor = open_beneath(top, path, os.O_RDONLY)
    try:
        # Looked at before it is made a file, which a folder refuses without closing it.
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("not a regular file")
        # A sparse file costs its creator nothing and its reader its full length.
        if status.st_size > limit:
            raise ValueError(f"larger than the {limit} bytes that are left for it")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(limit + 1)
    finally:
        os.close(descriptor)
    if len(data) > limit:
        raise ValueError(f"larger than the {limit} bytes that are left for it")
    return data
