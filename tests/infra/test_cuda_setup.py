"""The engine's environment for GPUs is really installed, and its kernels compiled, on a machine that may have none."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.infra.test_setup import HERE, UV

NEEDED_GB = 25  # the environment has 11, and what is downloaded for it


@pytest.mark.long
@pytest.mark.process
@pytest.mark.timeout(3600)
def test_set_up_for_a_gpu_installs_the_engine_and_compiles_its_kernels(tmp_path: Path) -> None:
    if shutil.which("c++") is None:
        pytest.skip("needs a C++ compiler")
    if (free := shutil.disk_usage(tmp_path).free >> 30) < NEEDED_GB:
        pytest.skip(f"needs {NEEDED_GB} GB of disk, and {free} are free")
    for folder in ("infra/setup", "infra/engine"):
        shutil.copytree(HERE / folder, tmp_path / folder)
    for name in ("pyproject.toml", "uv.lock"):
        shutil.copy(HERE / name, tmp_path)
    uv = next(path for path in (HERE / ".venv-uv/bin/uv", Path(shutil.which("uv") or "")) if path.is_file())
    (tmp_path / "uv").write_text(UV)
    (tmp_path / "uv").chmod(0o755)
    kernels = tmp_path / "kernels"
    variables = {**os.environ, "NBRL_SETUP_DEVICE": "cuda", "PYTHON": f"{sys.base_prefix}/bin/python3"}
    variables |= {"PATH": f"{tmp_path}:{os.environ['PATH']}", "TVM_FFI_CACHE_DIR": str(kernels)}
    variables.pop("CUDA_HOME", None)

    def set_up() -> subprocess.CompletedProcess[str]:
        return subprocess.run(["infra/setup/setup.sh"], cwd=tmp_path, env=variables, capture_output=True, text=True)

    try:
        assert set_up().returncode == 1  # the other two environments are made, of nothing
        (tmp_path / "uv").unlink()
        (tmp_path / "uv").symlink_to(uv)
        done = set_up()
        assert done.returncode == 0, done.stderr[-2000:]
        assert "compiling SGLang's kernels for GPUs of the kind" in done.stdout
        built = {path.parent.name for path in kernels.glob("*/*.so")}
        for kernel in ("activation", "rope", "qknorm", "kvcache"):
            assert any(kernel in name for name in built), (kernel, built)
    finally:
        shutil.rmtree(tmp_path / ".venv-engine", ignore_errors=True)  # it is large
