"""Counts the GPUs of this machine, and their memory, without importing a framework."""

import os
import re
import subprocess
from functools import cache


@cache
def gpus() -> int:
    """Number of NVIDIA GPUs that this process may use."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1"):
        return 0
    listing = nvidia_smi("-L")
    present = sum(line.startswith("GPU ") for line in listing.splitlines())
    return present if visible is None else min(present, len(visible.split(",")))


@cache
def memory_of_gpus() -> list[int]:
    """Bytes of each GPU of this machine; of those whose driver does not say, what their names do."""
    said = nvidia_smi("--query-gpu=memory.total", "--format=csv,noheader,nounits").split()
    found = [int(each) << 20 for each in said if each.isdecimal()]
    return found or [int(size) * 10**9 for size in re.findall(r"^GPU .*?\b(\d+) ?GB", nvidia_smi("-L"), re.MULTILINE)]


@cache
def nvidia_smi(*options: str) -> str:
    """What it prints; nothing where it is not there."""
    try:
        return subprocess.run(["nvidia-smi", *options], capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
