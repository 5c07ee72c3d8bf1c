"""The objects of a run as files, watched from outside while other processes write them."""

import contextlib
import os
import re
import statistics
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from nbrl.tasks.layout.stages import CHUNKS, EPOCH

NOT_COUNTED = re.compile(r"lease\.json|epochs/.*|pins/.*|redone-.*")  # which say nothing of how far a run is


class Objects:
    """What a run ever had on its storage. Its progress is told by places: keys without the epoch, all chunks of a round one."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._seen, self._places = set[str](), set[str]()
        self._times: list[float] = []  # at which something new was seen

    @property
    def count(self) -> int:
        """Places that had an object."""
        return len(self._places)

    def grown(self) -> bool:
        """Return whether there is an object that was not there at any earlier look."""
        new = {key for key, _ in self._files()} - self._seen
        self._seen |= new
        self._places |= {_place(key) for key in new}
        self._times += [time.monotonic()] * bool(new)
        return bool(new)

    def gaps(self) -> list[float]:
        """Seconds between an object and the next one."""
        return [after - before for before, after in pairwise(self._times)]

    def newest(self) -> float:
        """When the newest object was written, in seconds since 1970."""
        return max(written for _, written in self._files())

    def _files(self) -> list[tuple[str, float]]:
        found = []
        for folder, names, files in os.walk(self.folder):
            names[:] = [name for name in names if not _is_unfinished(name)]
            for name in files:
                path = Path(folder, name)
                key = path.relative_to(self.folder).as_posix()
                if not _is_unfinished(name) and not NOT_COUNTED.fullmatch(key):
                    with contextlib.suppress(FileNotFoundError):
                        found.append((key, path.stat().st_mtime))
        return found


def _is_unfinished(name: str) -> bool:
    """Return whether a file or folder is being written, by nbrl or by the server."""
    return name.startswith(".") or name.endswith(".partial")


def _place(key: str) -> str:
    place = EPOCH.sub("epoch", key)
    before, chunks, _ = place.partition(f"/{CHUNKS}/")
    return before + chunks


def lost_at_random(gaps: Sequence[float]) -> float:
    """Mean seconds since the last object at a moment at random."""
    return round(sum(gap**2 for gap in gaps) / 2 / sum(gaps), 2)


def median(values: Sequence[float]) -> float | None:
    return round(statistics.median(values), 2) if values else None
