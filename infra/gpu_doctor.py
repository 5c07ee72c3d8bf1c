"""Checks what a GPU needs besides a driver: builds of torch for it, and a compiler, for kernels are compiled where they run."""

import os
import re
import shutil
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from nbrl.infra.engine.settings import EngineSettings
from nbrl.infra.gpu import nvidia_smi

SETUP = "run `make setup` again, now that this machine has a GPU, or with NBRL_SETUP_DEVICE=cuda"
TOOLKIT = ("bin/nvcc", "lib64", "lib/libcudart.so", "include/cccl")  # what SGLang compiles with
DRIVER = 13  # CUDA's version that the locked builds need of a driver
LEAST_FREE = 0.5  # of a GPU's memory


def faults(engine: EngineSettings) -> Iterator[tuple[str, str]]:
    """Whatever is wrong with a machine that has GPUs, each with what to do."""
    for title, folder in (("nbrl's environment", _own()), (str(engine.environment), engine.folder)):
        cuda = _cuda(folder)
        if cuda is None:
            yield f"torch in {title} is a build for the CPU", SETUP
    driver = re.search(r"CUDA Version: *(\d+)", nvidia_smi())
    if driver and int(driver[1]) < DRIVER:
        yield f"the driver knows CUDA {driver[1]}, and torch needs {DRIVER}", "install driver 580 or a newer one"
    if shutil.which("c++") is None:
        yield "there is no C++ compiler, with which torch and SGLang compile kernels", "install one (Debian: g++)"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        yield "Python's headers are missing, with which Triton compiles kernels", "install them (Debian: python3-dev)"
    toolkit = next(iter(engine.folder.glob("lib/python3*/site-packages/nvidia/cu13")), None)
    if toolkit and "CUDA_HOME" not in os.environ and not all((toolkit / each).exists() for each in TOOLKIT):
        yield f"{toolkit} is no whole toolkit, with which SGLang compiles kernels at its start", SETUP
    said = nvidia_smi("--query-gpu=memory.free,memory.total", "--format=csv,noheader,nounits")
    for place, (free, total) in enumerate(re.findall(r"^ *(\d+) *, *(\d+)", said, re.MULTILINE)):
        if int(free) < LEAST_FREE * int(total):
            yield f"GPU {place} has {int(free) >> 10} of {int(total) >> 10} GiB free", "end what uses it; see nvidia-smi"


def _own() -> Path:
    return Path(sysconfig.get_path("purelib"))


def _cuda(folder: Path) -> str | None:
    """The version of CUDA that torch in an environment was built for; empty where there is no torch, None for a CPU build."""
    files = [*folder.glob("torch/version.py"), *folder.glob("lib/python3*/site-packages/torch/version.py")]
    if not files:
        return ""
    found = re.search(r"^cuda\b.*= *'([\d.]+)'", files[0].read_text(errors="replace"), re.MULTILINE)
    return found[1] if found else None
