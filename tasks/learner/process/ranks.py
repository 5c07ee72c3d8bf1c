"""The ranks of a learner: every one executes the same orders in the same sequence."""

import ctypes
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any, Self, TypeVar, cast

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from nbrl.infra.errors import DamagedCheckpointError, DamagedError, MissingError, StorageError
from nbrl.tasks.errors import UpdateError

Value = TypeVar("Value")


class Ranks:
    """This rank, from 0, among `count`. The process group must exist."""

    def __init__(self, device: torch.device) -> None:
        self.rank, self.count = dist.get_rank(), dist.get_world_size()
        self.mesh = init_device_mesh(device.type, (self.count,), mesh_dim_names=("data",))
        self._group: dist.ProcessGroup | None = None

    def apart(self) -> Self:
        """Collective. Return the same ranks for a thread of their own: collectives of one group must not interleave."""
        other = copy(self)
        other._group = dist.new_group(backend="gloo")
        return other

    def on_first(self, work: Callable[[], None]) -> None:
        """Collective. Do the work on rank 0; a failure raises UpdateError on every rank."""
        self.together(work if self.rank == 0 else lambda: None)

    def from_first(self, work: Callable[[], Value]) -> Value:
        """Collective. Return the result of rank 0, which alone does the work; a failure raises UpdateError on every rank."""
        value = self.together(work if self.rank == 0 else lambda: None)
        values = [value]
        dist.broadcast_object_list(values, src=0, group=self._group)
        return cast(Value, values[0])

    def gathered(self, value: Value) -> list[Value]:
        """Collective. Return the values of all ranks, in their order."""
        values: list[Any] = [None] * self.count
        dist.all_gather_object(values, value, group=self._group)
        return values

    def together(self, work: Callable[[], Value]) -> Value:
        """Collective. Do local work without collectives of its own; if it fails on any rank, raise the same error on all:
        StorageError, DamagedError or DamagedCheckpointError if the storage is at fault, else UpdateError.
        """
        failure: tuple[type[Exception], str] | None = None
        try:
            value = work()
        except DamagedCheckpointError as error:
            failure = DamagedCheckpointError, str(error)
        except (DamagedError, MissingError) as error:
            failure = DamagedError, str(error)
        except (StorageError, UpdateError) as error:
            failure = type(error), str(error)
        except Exception as error:
            failure = UpdateError, f"{type(error).__name__}: {error}"
        for kind, text in filter(None, self.gathered(failure)):
            raise kind(text)
        return value


def give_back(device: torch.device) -> None:
    """Release the free memory that a rank on the device keeps.

    On the CPU, pages of the C library: passes over trees of many sizes leave its heap in pieces, so that it grows from step to
    step although less and less of it is in use. On a GPU, blocks that torch keeps for the next pass: an engine may share it.
    """
    if device.type == "cuda":
        torch.cuda.empty_cache()
    else:
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def set_determinism(on: bool) -> None:
    """Let the whole process use only operations that give the same bits each time; operations without such a form raise.

    On CUDA it must come before the first matrix product, which reads cuBLAS's workspace from the environment.
    """
    if on:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(on)
    torch.backends.cudnn.deterministic = on
    torch.backends.cudnn.benchmark = False


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
        """Return `seconds/<phase>` of every phase so far, and `seconds/total`; waits for what a GPU still does."""
        if self._marks:
            torch.cuda.synchronize()
            for name, first, last in self._marks:
                self._add(name, first.elapsed_time(last) / 1000)
            self._marks = []
        seconds = {f"seconds/{name}": value for name, value in self._seconds.items()}
        return seconds | {"seconds/total": time.perf_counter() - self._began}

    def _add(self, name: str, seconds: float) -> None:
        self._seconds[name] = self._seconds.get(name, 0.0) + seconds
