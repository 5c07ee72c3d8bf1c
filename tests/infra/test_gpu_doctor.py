"""A machine with GPUs on which something is missing: each is named, with what to do."""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from nbrl.infra import doctor, gpu
from nbrl.infra.engine.settings import EngineSettings
from tests import gpus as fakes


@pytest.fixture(autouse=True)
def found_again() -> Iterator[None]:
    yield
    fakes.forget()


def environment(folder: Path, cuda: str | None, *, toolkit: bool = True) -> Path:
    """An engine's environment with a build of torch."""
    packages = folder / "lib/python3.11/site-packages"
    (packages / "torch").mkdir(parents=True)
    (packages / "torch/version.py").write_text(f"__version__ = '2.11.0'\ncuda: Optional[str] = {cuda!r}\n")
    (packages / "nvidia/cu13").mkdir(parents=True)
    for name in doctor.TOOLKIT if toolkit else ():
        (packages / "nvidia/cu13" / name).parent.mkdir(exist_ok=True)
        (packages / "nvidia/cu13" / name).touch()
    return folder


def faults(folder: Path) -> list[str]:
    return [what for what, fix in doctor.faults(EngineSettings(environment=str(folder))) if fix]


@pytest.fixture
def whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """All that a GPU needs, with an engine's environment of it."""
    fakes.fake(monkeypatch)
    monkeypatch.setattr(doctor, "_own", lambda: environment(tmp_path / "own", "13.0"))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    if shutil.which("c++") is None:
        (tmp_path / "c++").symlink_to("/bin/true")
    return environment(tmp_path / "engine", "13.0")


def test_a_machine_with_all_that_a_gpu_needs_is_well(whole: Path) -> None:
    assert faults(whole) == []
    assert (gpu.gpus(), gpu.memory_of_gpus()) == (1, [fakes.MIB << 20])


@pytest.mark.process
def test_a_driver_that_does_not_tell_the_memory_names_the_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvidia-smi").write_text('#!/bin/sh\n[ "$1" = -L ] && echo "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0)"\n')
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(gpu, "nvidia_smi", gpu.nvidia_smi.__wrapped__)  # what it says here is remembered for other tests
    fakes.forget()
    assert (gpu.gpus(), gpu.memory_of_gpus()) == (1, [80 * 10**9])


def test_builds_for_the_cpu_are_red(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_own", lambda: environment(tmp_path / "cpu", None))
    assert faults(environment(tmp_path / "cpu-engine", None)) == [
        "torch in nbrl's environment is a build for the CPU",
        f"torch in {tmp_path}/cpu-engine is a build for the CPU",
    ]


def test_what_compiles_kernels_must_be_there(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    monkeypatch.setattr(doctor.sysconfig, "get_path", lambda name: str(tmp_path))
    bare = environment(tmp_path / "bare", "13.0", toolkit=False)
    assert [re.sub(r"^\S+/cu13", "it", each) for each in faults(bare)] == [
        "there is no C++ compiler, with which torch and SGLang compile kernels",
        "Python's headers are missing, with which Triton compiles kernels",
        "it is no whole toolkit, with which SGLang compiles kernels at its start",
    ]


def test_an_old_driver_and_a_card_in_use_are_named(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fakes.fake(monkeypatch, count=2, free=10_240, driver="12.4")
    assert faults(whole) == [
        "the driver knows CUDA 12, and torch needs 13",
        "GPU 0 has 10 of 79 GiB free",
        "GPU 1 has 10 of 79 GiB free",
    ]
