"""What a benchmark ran on, in words. Stands beside the benchmarks, so that each finds it when it is run as a file."""

import os
import platform
from pathlib import Path

import torch


def processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    return f"{os.cpu_count()} cores {name}"


def hardware() -> str:
    """Return the GPU where there is one, which a benchmark then takes, else the processor."""
    return f"1 {torch.cuda.get_device_name()}" if torch.cuda.is_available() else processor()


def cpu_machine() -> str:
    """Processor, memory and Python of a benchmark that uses no GPU."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{processor()}, {memory:.0f} GiB, no GPU used, Python {platform.python_version()}"
