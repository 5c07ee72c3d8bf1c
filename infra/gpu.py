"""The hardware of this machine: its GPUs and their memory, free memory, and what the processor computes in. Imports no
framework.
"""

import os
import re
import subprocess
from functools import cache
from pathlib import Path
from threading import Event, Thread

SAMPLE_S = 0.5
IN_BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16"})  # Linux's names of the instructions that multiply in bfloat16
CPUINFO = Path("/proc/cpuinfo")


@cache
def gpus() -> int:
    """Return the number of NVIDIA GPUs that this process may use."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in ("", "-1"):
        return 0
    listing = nvidia_smi("-L")
    present = sum(line.startswith("GPU ") for line in listing.splitlines())
    return present if visible is None else min(present, len(visible.split(",")))


@cache
def memory_of_gpus() -> list[int]:
    """Return the bytes of each GPU of this machine; where the driver does not report them, those that the GPU's name implies."""
    lines = nvidia_smi("--query-gpu=memory.total", "--format=csv,noheader,nounits").split()
    sizes = [int(each) << 20 for each in lines if each.isdecimal()]
    return sizes or [int(size) * 10**9 for size in re.findall(r"^GPU .*?\b(\d+) ?GB", nvidia_smi("-L"), re.MULTILINE)]


@cache
def nvidia_smi(*options: str) -> str:
    """Return the output of nvidia-smi; empty where it is missing."""
    try:
        return subprocess.run(["nvidia-smi", *options], capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def available_mb() -> int:
    """Return the megabytes that new programs can have without swapping, as the system estimates it."""
    return _available_bytes() >> 20


def _available_bytes() -> int:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")) << 10


class MemoryPeak:
    """The most memory of this machine that was in use within this context beyond what was before, looked at twice a second."""

    def __init__(self) -> None:
        self._before = self._least = 0
        self._ended = Event()
        self._thread = Thread(target=self._watch, daemon=True)

    @property
    def most_bytes(self) -> int:
        return self._before - self._least

    def __enter__(self) -> "MemoryPeak":
        self._before = self._least = _available_bytes()
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(SAMPLE_S):
            self.look()

    def look(self) -> None:
        self._least = min(self._least, _available_bytes())


@cache
def computes_in_bfloat16() -> bool:
    """Return whether it has instructions for bfloat16: without them such products take several times as long as in float32."""
    return has_bfloat16(CPUINFO.read_text(errors="replace")) if CPUINFO.exists() else False


def has_bfloat16(cpuinfo: str) -> bool:
    """Return the same from the text of /proc/cpuinfo."""
    flags = re.search(r"^flags\s*:(.*)$", cpuinfo, re.MULTILINE)
    return flags is not None and not IN_BFLOAT16.isdisjoint(flags[1].split())
