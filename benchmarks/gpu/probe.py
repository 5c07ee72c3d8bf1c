"""What the machine is: tools that kernels are compiled with, and how fast it moves bytes and multiplies."""

import os
import re
import shutil
import subprocess
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from gpu.row import Given, Row, figures, gib


def measure(row: Row, given: Given) -> None:
    row.add("tools", tools)
    row.add("memory_gib", lambda: memory(given))
    row.add("disk_write_gb_s", lambda: disk(given))
    row.add("copies_gb_s", lambda: copies(given))
    row.add("matrix_product_tflops", lambda: products(given))
    row.add("group_s", lambda: group(given))


def tools() -> dict[str, str | bool]:
    header = Path(sysconfig.get_paths()["include"], "Python.h")
    return {name: first_line(name) for name in ("nvcc", "c++", "ninja", "nvidia-smi")} | {"Python.h": header.exists()}


def first_line(name: str) -> str:
    """Return where a tool is and the line of its version, or nothing."""
    if shutil.which(name) is None:
        return ""
    said = subprocess.run([name, "--version"], capture_output=True, text=True, check=False).stdout.splitlines()
    return next((line.strip() for line in said if re.search(r"\d\.\d", line)), name)


def memory(given: Given) -> dict[str, float]:
    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    free, total = torch.cuda.mem_get_info() if given.cuda else (0, 0)
    return {"gpu": gib(total), "gpu_free": gib(free), "host": gib(host), "disk_free": gib(shutil.disk_usage(given.scratch).free)}


def disk(given: Given) -> float:
    data, path = os.urandom(1 << 24), given.scratch / "file"
    times = 2 if given.tiny else 128
    began = time.perf_counter()
    with path.open("wb") as file:
        for _ in range(times):
            file.write(data)
        file.flush()
        os.fsync(file.fileno())
    seconds = time.perf_counter() - began
    path.unlink()
    return figures(times * len(data) / seconds / 1e9)


def copies(given: Given) -> dict[str, float]:
    """Return GB/s between host and device, and within the device, where bytes read and written count."""
    size = 1 << (20 if given.tiny else 30)
    here, pinned = torch.ones(size, dtype=torch.uint8), torch.ones(size, dtype=torch.uint8, pin_memory=given.cuda)
    there, other = here.to(given.device), torch.ones(size, dtype=torch.uint8, device=given.device)
    ways: dict[str, tuple[Tensor, Tensor]] = {
        "to_device": (there, here),
        "to_device_pinned": (there, pinned),
        "to_host": (here, there),
        "to_host_pinned": (pinned, there),
        "within_device": (there, other),
    }
    found = {}
    for name, (to, source) in ways.items():
        seconds = median_s(given, lambda to=to, source=source: to.copy_(source, non_blocking=True))  # type: ignore[misc]
        found[name] = figures(size * (2 if name == "within_device" else 1) / seconds / 1e9)
    return found


def products(given: Given) -> dict[str, float]:
    """Return what a square product of random numbers reaches by dtype."""
    size, found = 64 if given.tiny else 8192, {}
    for dtype in (torch.bfloat16, torch.float32):
        one, two = (torch.randn(size, size, dtype=dtype, device=given.device) for _ in range(2))
        seconds = median_s(given, lambda one=one, two=two: one @ two)  # type: ignore[misc]
        found[str(dtype).removeprefix("torch.")] = figures(2 * size**3 / seconds / 1e12)
    return found


def group(given: Given) -> dict[str, float]:
    """Return the seconds of making the learner's process group, and of its first reduction on the device."""
    began = time.perf_counter()
    join(given)
    joined = time.perf_counter()
    one = torch.ones(1024, device=given.device)
    dist.all_reduce(one)
    assert float(one.sum()) == 1024
    reduced = time.perf_counter()
    dist.destroy_process_group()
    return {"made": figures(joined - began), "first_reduction": figures(reduced - joined)}


def join(given: Given) -> None:
    """Make the process group of a learner with this process as its one rank."""
    backend = "cpu:gloo,cuda:nccl" if given.cuda else "gloo"
    if given.cuda:
        torch.cuda.set_device(0)
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)


def median_s(given: Given, work: Callable[[], object], times: int = 7) -> float:
    """Return the median of the seconds that the work takes, once it has been done twice."""
    seconds = []
    for _ in range(times + 2):
        wait(given)
        began = time.perf_counter()
        work()
        wait(given)
        seconds.append(time.perf_counter() - began)
    return sorted(seconds[2:])[times // 2]


def wait(given: Given) -> None:
    if given.cuda:
        torch.cuda.synchronize()
