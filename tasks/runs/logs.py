"""The lines that a start of a run printed, kept with the run in parts, for objects of a cloud cannot be appended to."""

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from nbrl.infra.errors import DamagedError, MissingError
from nbrl.infra.storage import Storage
from nbrl.tasks.layout.runs import RunLayout

PART, PARTS = 1 << 16, 32  # bytes of a part, and parts of a start: at most 2 MiB
LOG_BYTES = 1 << 26  # of what is read as a part, far more than any has
TAIL = 1 << 18  # bytes at the end of the log of each service
NUMBERED = re.compile(r"lines-(\d{6})\.log")


class RunLog:
    """The lines of one start. `write` may be called from any thread and touches no storage; `flush` brings the lines there.

    If there are more lines than are kept, the first part and the newest ones stay.
    """

    def __init__(self, storage: Storage, layout: RunLayout, epoch: str) -> None:
        self._storage, self._layout, self._epoch = storage, layout, epoch
        self._lock, self._flushing = threading.Lock(), threading.Lock()
        self._new: list[str] = []
        self._part, self._number = b"", 0

    def write(self, text: str) -> None:
        """Add lines with the time, in UTC."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        with self._lock:
            self._new += [f"{stamp} {line}\n" for line in text.splitlines()]

    def flush(self) -> None:
        """Write the lines since the last call. Nothing is written once the run was deleted."""
        with self._flushing:
            self._flush()

    def _flush(self) -> None:
        with self._lock:
            lines, self._new = self._new, []
        if not lines or not self._storage.exists(self._layout.epoch(self._epoch)):
            return
        for line in lines:
            data = line.encode(errors="replace")[:PART]
            if len(self._part) + len(data) > PART:
                self._keep()
                self._part, self._number = b"", self._number + 1
                if self._number >= PARTS:
                    self._storage.delete_keys([self._key(self._number - PARTS + 1)])
            self._part += data
        self._keep()

    def keep_tails(self, folder: Path, names: str, since: float) -> None:
        """Copy the ends of those logs in a local folder that were written to after `since` (seconds since 1970)."""
        if not self._storage.exists(self._layout.epoch(self._epoch)):
            return
        for path in sorted(folder.glob(names)):
            if path.stat().st_mtime >= since:
                with path.open("rb") as file:
                    file.seek(max(0, path.stat().st_size - TAIL))
                    self._storage.write_bytes(f"{self._layout.log(self._epoch)}/{path.name}", file.read())

    def _keep(self) -> None:
        self._storage.write_bytes(self._key(self._number), self._part)

    def _key(self, number: int) -> str:
        return part(self._layout, self._epoch, number)


def part(layout: RunLayout, epoch: str, number: int) -> str:
    return f"{layout.log(epoch)}/lines-{number:06d}.log"


class Reader:
    """Reads the lines of all starts of a run in order, and after that those that are new."""

    def __init__(self, storage: Storage, layout: RunLayout) -> None:
        self._storage, self._layout = storage, layout
        self._read: dict[str, int] = {}  # bytes of the newest parts

    def lines(self) -> Iterator[str]:
        """Yield the lines that were not given before. A part is read again only while it may grow: the last of its start.

        That of an earlier start may grow too: a start that is taken over says why it ended when the next one has begun. Raises
        DamagedError for a part that nbrl cannot have written.
        """
        sizes = self._storage.sizes(self._layout.logs)
        found = self._storage.list(self._layout.logs) if sizes is None else sizes
        keys = [key for key in found if NUMBERED.fullmatch(key.rpartition("/")[2])]
        for key in keys:
            begun = self._read.get(key, 0)
            start = f"{key.rpartition('/')[0]}/"
            if key in self._read and any(other > key and other.startswith(start) and other in self._read for other in keys):
                continue
            if sizes is not None and sizes[key] > LOG_BYTES:
                raise DamagedError(f"{self._storage.uri(key)} has more than {LOG_BYTES >> 20} MB, which no log has; take it away")
            try:
                data = self._storage.read_bytes(key)
            except MissingError:  # its start has said more than is kept
                continue
            self._read[key] = len(data)
            yield from data[begun:].decode(errors="replace").splitlines()

    @property
    def found(self) -> bool:
        return bool(self._read)
