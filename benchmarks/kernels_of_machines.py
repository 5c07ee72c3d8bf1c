"""Kernels alive at once on three machines of one Ray cluster, each after a cell with numpy, all of which answer once more.

Usage: python benchmarks/kernels_of_machines.py [-n 500]      as root; needs ip, nsenter, unshare

The machines are namespaces of this one (`tests/cluster/machines.py`) and share its cores and memory. An actor on each keeps `n`
kernels; only when all three have theirs does each run the next cell. The last line is one JSON object: kernels in all, whether
all answered, seconds until all were there, their processes' shares of memory (Pss) and what the machine gave for them.
"""

import argparse
import asyncio
import json
import os
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import ray
from hardware import cpu_machine
from kernel_density import ANSWER, CELL, cell, kib
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from nbrl.sandbox.kernel import SandboxKernel
from nbrl.sandbox.pool import KernelPool
from nbrl.sandbox.settings import KernelLimits
from nbrl.sandbox.walls.protections import pid_of
from tests.cluster.machines import RAY_PORT, Machines, lacking

ROOT = Path(__file__).resolve().parent.parent
STARTING = 8  # kernels of a machine that start at once


class Keeper:
    """Keeps kernels alive on its machine."""

    def __init__(self, n: int) -> None:
        self._n, self._stack, self._kernels = n, AsyncExitStack(), list[SandboxKernel]()

    async def fill(self) -> float:
        """Start all; the sum of their Pss in MB."""
        pool = await self._stack.enter_async_context(KernelPool(KernelLimits(warm=0, max_live=self._n, cell_timeout_s=300)))
        turn = asyncio.Semaphore(STARTING)

        async def start() -> None:
            async with turn:
                kernel = await self._stack.enter_async_context(pool.kernel())
                if (said := await cell(kernel, CELL)) != ANSWER:
                    raise RuntimeError(f"a kernel answered {said!r}")
                self._kernels.append(kernel)

        await asyncio.gather(*(start() for _ in range(self._n)))
        pids = (pid_of(kernel._process._pidfd) for kernel in self._kernels)
        return sum(kib(f"/proc/{pid}/smaps_rollup", "Pss") for pid in pids) / 1024

    async def again(self) -> int:
        """Return how many answer with what the first cell left."""
        return [await cell(kernel, "print(x.size)") for kernel in self._kernels].count("10000\n")

    async def stop(self) -> None:
        await self._stack.aclose()


def inside(address: str, n: int) -> None:
    """On the machine that leads."""
    ray.init(address, runtime_env={"env_vars": {"PYTHONPATH": os.environ["PYTHONPATH"]}})
    available, began = kib("/proc/meminfo", "MemAvailable"), time.perf_counter()
    keeper: Any = ray.remote(num_cpus=0)(Keeper)
    nodes = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in ray.nodes()]
    keepers = [keeper.options(scheduling_strategy=node).remote(n) for node in nodes]
    pss = ray.get([each.fill.remote() for each in keepers])
    seconds, taken = time.perf_counter() - began, available - kib("/proc/meminfo", "MemAvailable")
    answered = ray.get([each.again.remote() for each in keepers])
    ray.get([each.stop.remote() for each in keepers])
    figures = {
        "machines": len(keepers),
        "kernels": n * len(keepers),
        "answered_again": sum(answered),
        "start_s": round(seconds, 1),
        "pss_mb_each": round(sum(pss) / (n * len(keepers)), 2),
        "total_mb": taken // 1024,
        "hardware": cpu_machine(),
    }
    print(json.dumps(figures), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", type=int, default=500, help="kernels of each machine")
    parser.add_argument("--inside", metavar="ADDRESS", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.inside:
        return inside(arguments.inside, arguments.n)
    if reason := lacking():
        raise SystemExit(reason)
    with tempfile.TemporaryDirectory(prefix="nbrl-kernels-") as folder, Machines(ROOT, Path(folder)) as machines:
        machines.start_ray()
        address, here = f"{machines.address('a')}:{RAY_PORT}", str(ROOT / "benchmarks")
        again = ["python", __file__, "-n", str(arguments.n), "--inside", address]
        done = machines.on("a", *again, limit_s=1200, PYTHONPATH=f"{here}:{ROOT}")
        if done.returncode:
            raise SystemExit(done.stderr[-3000:])
        print(done.stdout.strip().splitlines()[-1])


if __name__ == "__main__":
    main()
