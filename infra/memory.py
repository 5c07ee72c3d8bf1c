"""Reports the free memory of this machine, and how much of it was used."""

from pathlib import Path
from threading import Event, Thread

SAMPLE_S = 0.5


def available_mb() -> int:
    """Megabytes that new programs can have without swapping, as the system estimates it."""
    return _available_bytes() >> 20


def _available_bytes() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")) << 10


class MemoryPeak:
    """The most memory of this machine that was in use within this context beyond what was before, looked at twice a second."""

    def __init__(self) -> None:
        self._before = self._least = 0
        self._ended = Event()
        self._thread = Thread(target=self._watch, daemon=True)

    @property
    def most_bytes(self) -> int:
        return self._before - self._least

    def __enter__(self) -> "MemoryPeak":
        self._before = self._least = _available_bytes()
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            self.look()

    def look(self) -> None:
        self._least = min(self._least, _available_bytes())
