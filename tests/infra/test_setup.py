"""What set-up installs is what the locks say, with a GPU and without one."""

import re
import tomllib
from pathlib import Path
from typing import Any

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
