"""The row of one part: measures by name, written to its file after each of them."""

import gc
import importlib.metadata
import json
import os
import platform
import subprocess
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from hardware import hardware

LINES = 12  # of an error


@dataclass(frozen=True)
class Given:
    """What every part is given: the device, whether only the way is to be tried, and a folder for its files."""

    device: torch.device
    tiny: bool
    scratch: Path

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"


class Row:
    """Measures of a part. One that fails leaves the end of its traceback in `errors`, and the next ones go on."""

    def __init__(self, part: str, path: Path, wanted: Sequence[str] = ()) -> None:
        """`wanted`: take only measures whose name has one of these in it; all where there are none."""
        self._path, self._wanted = path, wanted
        self.errors: dict[str, str] = {}
        self._found: dict[str, Any] = {"part": part}
        self._seconds: dict[str, float] = {}
        self._began = time.perf_counter()
        self.write()

    def add(self, name: str, work: Callable[[], Any], needed: bool = False) -> None:
        """Do the work and keep what it returns under `name`, beginning and ending with the GPU's memory free. What other measures
        need is done whatever is wanted.
        """
        if self._wanted and not needed and not any(each in name for each in self._wanted):
            return
        began = time.perf_counter()
        try:
            forget()
            self._found[name] = work()
        except Exception:
            self.errors[name] = last_lines(traceback.format_exc())
        forget()
        self._seconds[name] = round(time.perf_counter() - began, 1)
        self.write()

    def write(self) -> None:
        row = self._found | {
            "seconds": self._seconds,
            "total_s": round(time.perf_counter() - self._began, 1),
            "errors": self.errors,
        }
        self._path.write_text(json.dumps(row | machine()))


def forget() -> None:
    """Give the GPU's memory back and count its peak anew."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_gib() -> float | None:
    """Return the most that tensors took on the GPU since `forget`; None without a GPU."""
    return gib(torch.cuda.max_memory_allocated()) if torch.cuda.is_available() else None


def gib(count: float) -> float:
    return round(count / 2**30, 2)


def figures(value: float, digits: int = 3) -> float:
    """Return the number with so many significant digits."""
    return float(f"{value:.{digits}g}")


def last_lines(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-LINES:])


def machine() -> dict[str, Any]:
    """Return what the row was measured on and with."""
    versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers")}
    found: dict[str, Any] = {"hardware": hardware(), "cpu_cores": os.cpu_count(), "python": platform.python_version(), **versions}
    if torch.cuda.is_available():
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
        found |= {
            "torch": torch.__version__,
            "triton": importlib.metadata.version("triton"),
            "nccl": ".".join(map(str, torch.cuda.nccl.version())),
            "driver": subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip(),
        }
    return found
