"""Counts the GPUs of this machine without importing a framework."""

import os
import subprocess
from functools import cache


@cache
def gpus() -> int:
    """Number of NVIDIA GPUs that this process may use."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1"):
        return 0
    try:
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return 0
    present = sum(line.startswith("GPU ") for line in listing.splitlines())
    return present if visible is None else min(present, len(visible.split(",")))
