"""From the request for a clean kernel to its first cell's result: a fork of the zygote against a stock kernel in a bubblewrap.

The ways are measured alternately in one run, nothing is warm, so that load falls on all alike. CPU is everything a kernel
costs: the client's part, birth, one cell, end; it is read from a cpuacct cgroup (as root) and is null where there is none.
`zygote_cpu_ms` is the mean over the many kernels of the throughput part, which come one after the other as in a rollout;
`zygote_cpu_alone_ms` the median of those that each follow two cold starts, which leave nothing of theirs in the caches.
"""

import argparse
import asyncio
import json
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hardware import cpu_machine
from stock_kernel import stock_start

from nbrl.sandbox.pool import KernelPool
from nbrl.sandbox.settings import SandboxSettings

_CODE, _SAID = "print(1+1)", "2\n"
_ACCOUNTS = Path("/sys/fs/cgroup/cpuacct")


class Account:
    """The CPU time of this process and everything it starts, in milliseconds."""

    def __init__(self, group: Path) -> None:
        self._usage = group / "cpuacct.usage"

    def read_ms(self) -> float:
        return int(self._usage.read_text()) / 1e6


@contextmanager
def account() -> Iterator[Account | None]:
    """A CPU account for the rest of this process's life; None where the machine offers none."""
    group = _ACCOUNTS / f"nbrl-bench-{os.getpid()}"
    try:
        group.mkdir()
        (group / "cgroup.procs").write_text(str(os.getpid()))
    except OSError:
        yield None
        return
    try:
        yield Account(group)
    finally:
        (_ACCOUNTS / "cgroup.procs").write_text(str(os.getpid()))
        group.rmdir()


async def one(pool: KernelPool) -> float:
    """Milliseconds from the request to the first cell's result."""
    began = time.perf_counter()
    async with pool.kernel() as kernel:
        done = await kernel.execute(_CODE)
        taken = (time.perf_counter() - began) * 1000
    if [output.text for output in done.outputs] != [_SAID]:
        raise RuntimeError(f"the kernel answered {done}")
    return taken


async def measure(pairs: int, concurrency: int, seconds: float) -> dict[str, float | None]:
    wall: dict[str, list[float]] = {"zygote": [], "stock": [], "bubblewrap": []}
    cpu: list[float] = []
    settings = SandboxSettings(warm=0, max_live=concurrency)
    with account() as bill:
        async with (
            KernelPool(settings.model_copy(update={"provisioner": "zygote"})) as zygote,
            KernelPool(settings.model_copy(update={"provisioner": "bubblewrap"})) as cold,
        ):
            for number in range(1 + pairs):
                before = bill.read_ms() if bill else 0.0
                taken = await one(zygote)
                await zygote.settle()
                spent = (bill.read_ms() if bill else 0.0) - before
                stock = await stock_start(_CODE, _SAID)
                own = await one(cold)
                await cold.settle()
                if number:  # the first are a warm-up
                    cpu.append(spent)
                    for way, value in zip(wall, (taken, stock, own), strict=True):
                        wall[way].append(value)
            before, began = bill.read_ms() if bill else 0.0, time.perf_counter()
            rate = await throughput(zygote, concurrency, seconds)
            kernels = rate * (time.perf_counter() - began)
            busy = (bill.read_ms() if bill else 0.0) - before
    zygote_ms, cold_ms, own_ms = (statistics.median(values) for values in wall.values())
    return {
        "pairs": pairs,
        "zygote_ms": round(zygote_ms, 1),
        "cold_ms": round(cold_ms, 1),
        "ratio": round(cold_ms / zygote_ms, 1),
        "own_cold_ms": round(own_ms, 1),
        "zygote_cpu_ms": round(busy / kernels, 1) if bill else None,
        "zygote_cpu_alone_ms": round(statistics.median(cpu), 1) if bill else None,
        "kernels_per_s": round(rate, 1),
        "concurrency": concurrency,
        "load": round(os.getloadavg()[0], 1),
        "hardware": cpu_machine(),
    }


async def throughput(pool: KernelPool, concurrency: int, seconds: float) -> float:
    """Clean kernels per second: start, one cell, end."""
    finish = time.perf_counter() + seconds

    async def worker() -> int:
        count = 0
        while time.perf_counter() < finish:
            await one(pool)
            count += 1
        return count

    began = time.perf_counter()
    counts = await asyncio.gather(*(worker() for _ in range(concurrency)))
    await pool.settle()
    return sum(counts) / (time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=5.0, help="length of the throughput part")
    given = parser.parse_args()
    print(json.dumps(asyncio.run(measure(given.pairs, given.concurrency, given.seconds))))


if __name__ == "__main__":
    main()
