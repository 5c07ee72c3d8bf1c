"""Measures how long the phases of an order take."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Timer:
    """Seconds by phase since the last `begin`: on a GPU those between marks in its queue, so that nothing waits for it."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self.begin()

    def begin(self) -> None:
        self._seconds: dict[str, float] = {}
        self._marks: list[tuple[str, torch.cuda.Event, torch.cuda.Event]] = []
        self._began = time.perf_counter()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        if self._on_gpu:
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            yield
            last.record()
            self._marks.append((name, first, last))
        else:
            started = time.perf_counter()
            yield
            self._add(name, time.perf_counter() - started)

    def metrics(self) -> dict[str, float]:
        """`seconds/<phase>` of every phase so far, and `seconds/total`; waits for what a GPU still does."""
        if self._marks:
            torch.cuda.synchronize()
            for name, first, last in self._marks:
                self._add(name, first.elapsed_time(last) / 1000)
            self._marks = []
        seconds = {f"seconds/{name}": value for name, value in self._seconds.items()}
        return seconds | {"seconds/total": time.perf_counter() - self._began}

    def _add(self, name: str, seconds: float) -> None:
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds
