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
    """The GPU where there is one, which a benchmark then takes, else the processor."""
    return f"1 {torch.cuda.get_device_name()}" if torch.cuda.is_available() else processor()
