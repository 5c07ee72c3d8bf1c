"""Measures how long the phases of an order take."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Timer:
    """Wall seconds by phase since the last `begin`, including the device's work."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.begin()

    def begin(self) -> None:
        self._seconds: dict[str, float] = {}
        self._began = time.perf_counter()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        started = time.perf_counter()
        yield
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - started

    def metrics(self) -> dict[str, float]:
        """`seconds/<phase>` of every phase so far, and `seconds/total`."""
        seconds = {f"seconds/{name}": value for name, value in self._seconds.items()}
        return seconds | {"seconds/total": time.perf_counter() - self._began}
