"""Kernels alive at once on one machine, each after one cell with numpy: what they take, and whether all of them answer.

PSS is each kernel process's share of memory, pages shared with the zygote divided among all (/proc/<pid>/smaps_rollup, read from
outside); the total is the fall of the machine's MemAvailable, which has the host's part in it. `all_alive`: with all of them
there, each runs another cell.
"""

import argparse
import asyncio
import json
import os
import resource
import statistics
import time
from contextlib import AsyncExitStack
from pathlib import Path

from hardware import cpu_machine

from nbrl.sandbox.kernel import SandboxKernel
from nbrl.sandbox.pool import KernelPool
from nbrl.sandbox.settings import KernelLimits
from nbrl.sandbox.walls.protections import pid_of

CELL = "import numpy\nx = numpy.arange(10_000.0)\nprint(float(x @ x))"
ANSWER = "333283335000.0\n"


def kib(file: str, name: str) -> int:
    """Return a figure of a /proc file with lines of `name: N kB`."""
    lines = Path(file).read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


async def cell(kernel: SandboxKernel, code: str) -> str:
    done = await kernel.execute(code)
    return "".join(output.text for output in done.outputs)


async def measure(n: int, concurrency: int) -> dict[str, float | bool]:
    available = kib("/proc/meminfo", "MemAvailable")
    host = resource.getrusage(resource.RUSAGE_SELF)
    turn = asyncio.Semaphore(concurrency)
    settings = KernelLimits(warm=0, max_live=n, cell_timeout_s=120)
    async with KernelPool(settings) as pool, AsyncExitStack() as stack:
        began = time.perf_counter()

        async def start() -> SandboxKernel:
            async with turn:
                kernel = await stack.enter_async_context(pool.kernel())
                if (said := await cell(kernel, CELL)) != ANSWER:
                    raise RuntimeError(f"a kernel answered {said!r}")
                return kernel

        kernels = await asyncio.gather(*(start() for _ in range(n)))
        seconds = time.perf_counter() - began
        pss = [kib(f"/proc/{pid_of(kernel._process._pidfd)}/smaps_rollup", "Pss") / 1024 for kernel in kernels]
        total = (available - kib("/proc/meminfo", "MemAvailable")) / 1024
        again = [await cell(kernel, "print(x.size)") for kernel in kernels]
        descriptors = len(os.listdir("/proc/self/fd"))
        began = time.perf_counter()
    ended = time.perf_counter() - began
    return {
        "n": n,
        "pss_mb_each": round(statistics.mean(pss), 2),
        "all_alive": again == ["10000\n"] * n,
        "pss_mb_most": round(max(pss), 2),
        "total_mb": round(total),
        "total_mb_each": round(total / n, 2),
        "host_mb": round((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - host.ru_maxrss) / 1024),
        "host_descriptors": descriptors,
        "start_s": round(seconds, 1),
        "kernels_per_s": round(n / seconds, 1),
        "end_s": round(ended, 1),
        "concurrency": concurrency,
        "load": round(os.getloadavg()[0], 1),
        "hardware": cpu_machine(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--n", type=int, default=500)
    parser.add_argument("--concurrency", type=int, default=8, help="kernels in the making at once")
    given = parser.parse_args()
    print(json.dumps(asyncio.run(measure(given.n, given.concurrency))))


if __name__ == "__main__":
    main()
