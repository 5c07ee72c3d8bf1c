"""Measures for how long anything of a kind is in progress."""

import time
from types import TracebackType


class Busy:
    """A context for each piece of work; `seconds` is for how long at least one has been open."""

    def __init__(self) -> None:
        self._open, self._since, self._total_s = 0, 0.0, 0.0

    def __enter__(self) -> None:
        if not self._open:
            self._since = time.monotonic()
        self._open += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._open -= 1
        if not self._open:
            self._total_s += time.monotonic() - self._since

    @property
    def seconds(self) -> float:
        return self._total_s + (time.monotonic() - self._since if self._open else 0.0)
