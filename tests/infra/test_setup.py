"""What set-up installs is what the locks say, with a GPU and without one."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parents[2]
CPU, CUDA = HERE / "infra/engine/environment", HERE / "infra/engine/cuda"


def read(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text())


def locked(folder: Path, name: str) -> str:
    (found,) = (package["version"] for package in read(folder / "uv.lock")["package"] if package["name"] == name)
    return str(found)


def test_both_builds_of_torch_are_of_the_locked_version() -> None:
    version = locked(HERE, "torch")
    assert locked(CPU, "torch") == version
    assert re.findall(r"torch==([\d.]+)", (HERE / "infra/setup/setup.sh").read_text()) == [version]
    assert re.findall(r"^torch==([\d.]+)", (HERE / "infra/setup/torch-cuda.txt").read_text(), re.M) == [version]


def test_both_engines_are_the_same_sglang() -> None:
    assert locked(CUDA, "sglang") == locked(CPU, "sglang")


def test_learner_and_engine_have_one_nccl() -> None:
    """It refuses peers of another version, and weights are sent from one to the other."""
    of_learner = re.findall(r"^nvidia-nccl-cu13==([\d.]+)", (HERE / "infra/setup/torch-cuda.txt").read_text(), re.M)
    assert of_learner == [locked(CUDA, "nvidia-nccl-cu13")]


def test_what_the_cuda_build_loads_is_pinned_by_digest() -> None:
    lines = (HERE / "infra/setup/torch-cuda.txt").read_text().replace("\\\n", "").splitlines()
    pinned = [line for line in lines if not line.startswith("#")]
    assert len(pinned) > 10
    assert all(re.fullmatch(r"[a-z0-9-]+==[\w.]+( +--hash=sha256:[0-9a-f]{64})+ *", line) for line in pinned)


def test_nothing_that_torch_needs_is_missing_beside_a_gpu() -> None:
    """What the main lock leaves out of torch's needs is in the file of the CUDA build."""
    text = (HERE / "infra/setup/torch-cuda.txt").read_text()
    beside = set(re.findall(r"^([a-z0-9-]+)==", text, re.M))
    of_torch = {
        each["name"]
        for package in read(CUDA / "uv.lock")["package"]
        if package["name"] == "torch"
        for each in package["dependencies"]
    }
    here = {package["name"] for package in read(HERE / "uv.lock")["package"]}
    assert of_torch - beside - here == set()


# In place of uv: it makes environments whose Python does nothing, but none from the engine's lock.
UV = """#!/bin/sh
case "$*" in *infra/engine*) echo "error: there is no network" >&2; exit 2 ;; esac
if [ "$1" = sync ]; then
  mkdir -p "$UV_PROJECT_ENVIRONMENT/bin"
  ln -sf /bin/true "$UV_PROJECT_ENVIRONMENT/bin/python"
fi
"""


@pytest.mark.more
@pytest.mark.process
def test_an_environment_that_cannot_be_made_is_said_in_a_line_and_what_else_was_made_stays(tmp_path: Path) -> None:
    for folder in ("infra/setup", "infra/engine/environment"):
        shutil.copytree(HERE / folder, tmp_path / folder)
    for name in ("pyproject.toml", "uv.lock"):
        shutil.copy(HERE / name, tmp_path)
    (tmp_path / "uv").write_text(UV)
    (tmp_path / "uv").chmod(0o755)
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("UV_", "PIP_"))}
    variables |= {"PATH": f"{tmp_path}:{os.environ['PATH']}", "PYTHON": f"{sys.base_prefix}/bin/python3"}
    variables |= {"PIP_CONFIG_FILE": os.devnull, "NBRL_SETUP_DEVICE": "cpu"}
    done = subprocess.run(["infra/setup/setup.sh"], cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("setup: .venv-engine could not be installed: error: there is no network ")
    assert len(done.stderr.splitlines()) == 1
    assert (tmp_path / "setup.venv-engine.log").read_text() == "error: there is no network\n"
    told = [re.sub(r"\d+ s$", "… s", line.partition(" (")[0]) for line in done.stdout.splitlines()]
    assert told[:3] == ["making .venv", "making .venv-kernels", "making .venv-engine"]
    assert sorted(told[3:]) == ["made .venv in … s", "made .venv-kernels in … s"]
    assert sorted(each.parent.name for each in tmp_path.glob(".venv*/.nbrl-setup")) == [".venv", ".venv-kernels"]
