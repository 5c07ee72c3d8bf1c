"""Round trip of the cell `print(1+1)`: a kernel of ours through our client, against nbclient on a stock kernel without a sandbox.

Cells are measured alternately in one process, after a warm-up, so that load falls on both alike. `ours_host_ms` is the processor
time that a cell of ours costs this process, which has the client.
"""

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import time

import nbformat
from hardware import cpu_machine
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

from nbrl.sandbox.kernel import SandboxKernel
from nbrl.sandbox.pool import KernelPool
from nbrl.sandbox.settings import SandboxSettings

_CODE = "print(1+1)"


async def ours(kernel: SandboxKernel) -> tuple[float, float]:
    """Milliseconds of one cell, and those of the processor in this process."""
    began, worked = time.perf_counter(), time.process_time()
    done = await kernel.execute(_CODE)
    taken, work = (time.perf_counter() - began) * 1000, (time.process_time() - worked) * 1000
    if "".join(output.text for output in done.outputs) != "2\n":
        raise RuntimeError(f"our kernel answered {done}")
    return taken, work


async def theirs(client: NotebookClient) -> float:
    """Milliseconds of one cell."""
    cell = nbformat.v4.new_code_cell(_CODE)
    began = time.perf_counter()
    await client.async_execute_cell(cell, 0)
    taken = (time.perf_counter() - began) * 1000
    if "".join(output["text"] for output in cell.outputs) != "2\n":
        raise RuntimeError(f"the stock kernel answered {cell.outputs}")
    return taken


async def measure(cells: int, warm_up: int) -> dict[str, float]:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(_CODE)])
    manager = AsyncKernelManager(kernel_name="")
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    manager._kernel_spec = KernelSpec(argv=command, language="python")
    client = NotebookClient(notebook, km=manager)
    found: list[tuple[float, float, float]] = []
    async with (
        KernelPool(SandboxSettings(warm=0)) as pool,
        pool.kernel() as kernel,
        client.async_setup_kernel(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL),
    ):
        try:
            for _ in range(warm_up + cells):
                found.append((*await ours(kernel), await theirs(client)))
        finally:
            await manager.shutdown_kernel(now=True)
    mine, host, stock = zip(*found[warm_up:], strict=True)
    return {
        "cells": cells,
        "ours_ms": round(statistics.median(mine), 2),
        "ours_host_ms": round(statistics.median(host), 2),
        "nbclient_ms": round(statistics.median(stock), 2),
        "ratio": round(statistics.median(stock) / statistics.median(mine), 1),
        "p99_ms": round(statistics.quantiles(mine, n=100)[98], 2),
        "load": round(os.getloadavg()[0], 1),
        "hardware": cpu_machine(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=500)
    parser.add_argument("--warm-up", type=int, default=50)
    given = parser.parse_args()
    print(json.dumps(asyncio.run(measure(given.cells, given.warm_up))))


if __name__ == "__main__":
    main()
