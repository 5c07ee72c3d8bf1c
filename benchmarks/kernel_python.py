"""Kernels of the environment that set-up made for them against kernels of another one: processor time, page faults, memory.

Usage: python benchmarks/kernel_python.py [--other .venv] [--rounds 30] [--seconds 0.5]

Both have a zygote in this process; the two take turns, in bursts of clean kernels that each run one cell. CPU is everything that
a kernel costs, the client's part as well, as in kernel_start.py (as root, where there is a cpuacct cgroup). Page faults are the
minor ones of a kernel's process until its first cell with numpy has run, and private memory what it shares with no other
process then. `*_ratio`: the median of the rounds' ratios, the environment for kernels divided by the other.
"""

import argparse
import asyncio
import json
import os
import statistics
import time
from pathlib import Path

from hardware import cpu_machine
from kernel_density import cell
from kernel_start import account, throughput

from nbrl.sandbox.pool import KernelPool
from nbrl.sandbox.settings import SandboxSettings
from nbrl.sandbox.walls.protections import pid_of

CONCURRENCY, KERNELS = 4, 10
CELL = "import numpy, resource, sys\nprint(*sys.version_info[:2], resource.getrusage(resource.RUSAGE_SELF).ru_minflt)"


def private_mb(process: int) -> float:
    """Memory in MB that a process shares with no other."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1000


async def inspected(pool: KernelPool) -> tuple[str, int, float]:
    """Return the Python of a clean kernel, its page faults, and its private memory in MB."""
    async with pool.kernel() as kernel:
        major, minor, faults = (await cell(kernel, CELL)).split()
        return f"{major}.{minor}", int(faults), private_mb(pid_of(kernel._process._pidfd))


async def measure(other: str, rounds: int, seconds: float) -> dict[str, object]:
    settings = SandboxSettings(warm=0, max_live=CONCURRENCY)
    cpu: dict[str, list[float]] = {"kernels": [], "other": []}
    rate: dict[str, list[float]] = {"kernels": [], "other": []}
    found: dict[str, object] = {}
    with account() as bill:
        if bill is None:
            raise SystemExit("kernel_python.py: there is no cpuacct cgroup here, or this is not root")
        async with KernelPool(settings) as ours, KernelPool(settings.model_copy(update={"environment": other})) as theirs:
            pools = {"kernels": ours, "other": theirs}
            for way, pool in pools.items():
                looks = [await inspected(pool) for _ in range(KERNELS)]
                found |= {
                    f"{way}_python": looks[0][0],
                    f"{way}_page_faults": round(statistics.median(faults for _, faults, _ in looks)),
                    f"{way}_private_mb": round(statistics.median(private for _, _, private in looks), 2),
                }
            for number in range(rounds + 1):  # the first is a rehearsal
                for way, pool in (pools, dict(reversed(pools.items())))[number % 2].items():
                    before, began = bill.read_ms(), time.perf_counter()
                    per_s = await throughput(pool, CONCURRENCY, seconds)
                    kernels = per_s * (time.perf_counter() - began)
                    if number:
                        cpu[way].append((bill.read_ms() - before) / kernels)
                        rate[way].append(per_s)
    for name, values in (("cpu_ms", cpu), ("per_s", rate)):
        found |= {f"{way}_{name}": round(statistics.median(values[way]), 1) for way in values}
        ratios = [ours / theirs for ours, theirs in zip(values["kernels"], values["other"], strict=True)]
        found[f"{name}_ratio"] = round(statistics.median(ratios), 3)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--other", default=".venv", help="the environment to compare with, as in sandbox.environment")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=0.5, help="of one burst")
    given = parser.parse_args()
    found = asyncio.run(measure(given.other, given.rounds, given.seconds))
    described = {
        "rounds": given.rounds,
        "concurrency": CONCURRENCY,
        "load": round(os.getloadavg()[0], 1),
        "hardware": cpu_machine(),
    }
    print(json.dumps(found | described))


if __name__ == "__main__":
    main()
