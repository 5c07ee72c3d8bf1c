"""Checks each part of this machine, and what a GPU needs besides a driver: what is wrong and how to fix it. Starts nothing,
imports nothing heavy.
"""

import importlib.metadata
import importlib.util
import os
import re
import shutil
import sqlite3
import subprocess
import sysconfig
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from nbrl.infra.engine.settings import EngineSettings
from nbrl.infra.errors import InfraError
from nbrl.infra.gpu import available_mb, gpus, nvidia_smi
from nbrl.infra.home import Home
from nbrl.infra.process.child import port_in_use
from nbrl.infra.storage import Storage, StorageSettings

GPU_SETUP = "run `make setup` again, now that this machine has a GPU, or with NBRL_SETUP_DEVICE=cuda"
TOOLKIT = ("bin/nvcc", "lib64", "lib/libcudart.so", "include/cccl")  # what SGLang compiles with
DRIVER = 13  # CUDA's version that the locked builds need of a driver
LEAST_FREE = 0.5  # of a GPU's memory
LIMIT_S = 8.0
MEMORY_GB = 5.0  # Ray 0.7, engine 2.3, two learners 1, orchestrator and kernels 1
DISK_GB = 2.0
SHARED_MEMORY_MB = 300
SETUP = "run `make setup`"


def faults(engine: EngineSettings) -> Iterator[tuple[str, str]]:
    """Yield whatever is wrong with a machine that has GPUs, each with what to do."""
    for title, folder in (("nbrl's environment", _own()), (str(engine.environment), engine.folder)):
        cuda = _cuda(folder)
        if cuda is None:
            yield f"torch in {title} is a build for the CPU", GPU_SETUP
    driver = re.search(r"CUDA Version: *(\d+)", nvidia_smi())
    if driver and int(driver[1]) < DRIVER:
        yield f"the driver knows CUDA {driver[1]}, and torch needs {DRIVER}", "install driver 580 or a newer one"
    if shutil.which("c++") is None:
        yield "there is no C++ compiler, with which torch and SGLang compile kernels", "install one (Debian: g++)"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        yield "Python's headers are missing, with which Triton compiles kernels", "install them (Debian: python3-dev)"
    toolkit = next(iter(engine.folder.glob("lib/python3*/site-packages/nvidia/cu13")), None)
    if toolkit and "CUDA_HOME" not in os.environ and not all((toolkit / each).exists() for each in TOOLKIT):
        yield f"{toolkit} is no whole toolkit, with which SGLang compiles kernels at its start", GPU_SETUP
    output = nvidia_smi("--query-gpu=memory.free,memory.total", "--format=csv,noheader,nounits")
    for place, (free, total) in enumerate(re.findall(r"^ *(\d+) *, *(\d+)", output, re.MULTILINE)):
        if int(free) < LEAST_FREE * int(total):
            yield f"GPU {place} has {int(free) >> 10} of {int(total) >> 10} GiB free", "end what uses it; see nvidia-smi"


def _own() -> Path:
    return Path(sysconfig.get_path("purelib"))


def _cuda(folder: Path) -> str | None:
    """Return the version of CUDA that torch in an environment was built for; empty without torch, None for a CPU build."""
    files = [*folder.glob("torch/version.py"), *folder.glob("lib/python3*/site-packages/torch/version.py")]
    if not files:
        return ""
    match = re.search(r"^cuda\b.*= *'([\d.]+)'", files[0].read_text(errors="replace"), re.MULTILINE)
    return match[1] if match else None


@dataclass(frozen=True)
class Check:
    name: str
    ok: bool
    message: str
    fix: str = ""


class WrongError(Exception):
    """A check failed; `args` are what is wrong and how to fix it."""


def checks(home: Home, engine: EngineSettings | None, storage: StorageSettings) -> Iterator[Check]:
    """Yield one check per part; one that fails or hangs does not affect the others. `engine` is None if none is to run here."""
    parts: dict[str, Callable[[], str]] = (
        {} if engine is None else {"engine": lambda: _engine(engine), "gpu": lambda: _gpu(engine)}
    )
    parts |= {
        "ray": _ray,
        "storage": lambda: _storage(storage),
        "prefect": lambda: _server("prefect", home.prefect / "prefect.db"),
        "mlflow": lambda: _server("mlflow", home.mlflow / "mlflow.db"),
        "memory": _memory,
        "disk": lambda: _disk(home),
    }
    futures = {name: _begin(check) for name, check in parts.items()}
    for name, future in futures.items():
        try:
            yield Check(name, True, future.result(LIMIT_S))
        except WrongError as wrong:
            yield Check(name, False, *wrong.args)
        except TimeoutError:
            yield Check(name, False, f"no answer within {LIMIT_S:g} s", "see whether what it talks to is up")
        except Exception as error:
            yield Check(name, False, str(error) or type(error).__name__, SETUP)


def _begin(check: Callable[[], str]) -> Future[str]:
    future: Future[str] = Future()

    def run() -> None:
        try:
            future.set_result(check())
        except Exception as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()  # one that hangs must not keep the program from ending
    return future


def _engine(settings: EngineSettings) -> str:
    if not settings.python.exists():
        raise WrongError(f"there is no engine environment at {settings.environment}", f"{SETUP}, or set engine.environment")
    script = "from importlib.metadata import version as v; print('SGLang', v('sglang'), 'on torch', v('torch'))"
    outcome = subprocess.run([settings.python, "-I", "-c", script], capture_output=True, text=True, timeout=LIMIT_S)
    if outcome.returncode:
        line = (outcome.stderr.strip().splitlines() or ["no message"])[-1]
        raise WrongError(f"{settings.environment} is incomplete: {line}", f"remove {settings.environment} and {SETUP}")
    if settings.port is not None and port_in_use(settings.port):
        raise WrongError(f"port {settings.port} is taken", "end what listens there, or set engine.port to another")
    return outcome.stdout.strip()


def _gpu(settings: EngineSettings) -> str:
    needed = settings.count * settings.tensor_parallel
    if settings.resolved_device == "cuda" and gpus() < needed:
        raise WrongError(
            f"the engines need {needed} GPUs, this machine has {gpus()}", "lower engine.count or engine.tensor_parallel"
        )
    if not gpus():
        return "none: engine and training run on the CPU"
    if settings.device != "cpu" and (wrong := list(faults(settings))):
        raise WrongError("; ".join(what for what, _ in wrong), "; ".join(dict.fromkeys(fix for _, fix in wrong)))
    return f"{gpus()} of NVIDIA"


def _ray() -> str:
    version = _version("ray")
    free = shared_memory_mb()
    if free < SHARED_MEMORY_MB:
        raise WrongError(
            f"/dev/shm has {free} MB left, Ray and the weights need {SHARED_MEMORY_MB}", "enlarge it (docker: --shm-size=2g)"
        )
    return f"Ray {version}, {free} MB of shared memory"


def shared_memory_mb() -> int:
    """Return the megabytes of shared memory that are free on this machine."""
    return shutil.disk_usage("/dev/shm").free >> 20


def _storage(settings: StorageSettings) -> str:
    probe = f"doctor/{os.getpid()}"
    try:
        storage = Storage(settings)
        storage.write_bytes(probe, b"probe")
        whole = storage.read_bytes(probe) == b"probe"
        storage.delete_keys([probe])
        once = storage.creates_once()
    except InfraError as error:
        raise WrongError(
            str(error), "check storage.root, its permissions and, for a cloud, the variables of its credentials"
        ) from error
    if not whole:
        raise WrongError(f"{settings.root} does not give back what was written", "use another storage.root")
    if not once:
        return (
            f"{settings.root} can be written, but its server ignores conditional writes: the epochs of a run alone keep two "
            "processes apart, so never let two train one run"
        )
    return f"{settings.root} can be written"


def _server(package: str, database: Path) -> str:
    version = _version(package)
    if not database.exists() and os.access(database.parent, os.W_OK):
        return f"{version}, {database} will be made"
    try:
        connection = sqlite3.connect(f"{database.as_uri()}?mode=rw", uri=True, timeout=2)
        try:
            connection.execute("BEGIN IMMEDIATE")
            connection.rollback()
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise WrongError(f"{database} cannot be written: {error}", "end what holds it, or fix its permissions") from error
    return f"{version}, {database} can be written"


def _version(package: str) -> str:
    if importlib.util.find_spec(package) is None:
        raise WrongError(f"{package} is not installed here", SETUP)
    return importlib.metadata.version(package)


def _memory() -> str:
    available = available_mb() / 1024
    if available < MEMORY_GB:
        raise WrongError(f"{available:.1f} GB of memory are free, the tiny recipe needs {MEMORY_GB:g}", "end other programs")
    return f"{available:.0f} GB free"


def _disk(home: Home) -> str:
    free = shutil.disk_usage(home.logs).free / (1 << 30)
    if free < DISK_GB:
        raise WrongError(
            f"{free:.1f} GB are free at {home.root}", f"make room: checkpoints and logs need {DISK_GB:g} GB and more"
        )
    return f"{free:.0f} GB free at {home.root}"
