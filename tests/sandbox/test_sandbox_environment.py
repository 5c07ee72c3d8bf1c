"""Which Python kernels have, and what of it they share with their zygote."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nbrl.sandbox.errors import SandboxUnavailable
from nbrl.sandbox.provisioner import ZygoteProvisioner
from nbrl.sandbox.settings import SandboxSettings
from nbrl.sandbox.walls import interpreter
from tests.sandbox.sandbox_lab import Lab

pytestmark = pytest.mark.sandbox
VERSION = "import json, sys; print(json.dumps(sys.version_info[:3]))"
OWN = Path(sys.prefix)


def version_of(python: str | Path) -> list[int]:
    done = subprocess.run([python, "-c", VERSION], capture_output=True, check=True, timeout=60)
    return list(json.loads(done.stdout))


@pytest.mark.more
@pytest.mark.skipif(not interpreter.MADE.exists(), reason="set-up has made no environment of kernels here")
def test_kernels_have_the_environment_that_set_up_made(lab: Lab) -> None:
    assert json.loads(lab.value(VERSION)) == version_of(interpreter.MADE / "bin/python")
    assert lab.value(
        "import importlib.util as u; print([u.find_spec(n) is None for n in ('numpy', 'pandas', 'ray', 'nbrl.flows')])"
    ) == ("[False, False, True, True]\n")


def test_kernels_have_the_environment_that_the_settings_name(lab: Lab) -> None:
    assert json.loads(lab.value(VERSION, environment=str(OWN))) == version_of(sys.executable)
    assert lab.value("import importlib.util as u; print(u.find_spec('ray') is None)", environment=str(OWN)) == "False\n"


def test_without_an_environment_kernels_have_nbrls_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(interpreter, "MADE", tmp_path / "never made")
    assert interpreter.for_kernels(SandboxSettings()).executable == Path(sys.executable).resolve()


def test_an_environment_whose_python_is_gone_is_refused_and_not_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").symlink_to("/nowhere/python3.12")
    monkeypatch.setattr(interpreter, "MADE", tmp_path)
    with pytest.raises(SandboxUnavailable, match=rf"the Python environment {tmp_path}: .*No such file.*run `make setup`"):
        interpreter.for_kernels(SandboxSettings())


def test_a_relative_path_of_an_environment_is_one_in_the_repository(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / OWN.name).mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(interpreter, "CHECKOUT", OWN.parent)
    assert interpreter.for_kernels(SandboxSettings(environment=OWN.name)) == interpreter.for_kernels(
        SandboxSettings(environment=str(OWN))
    )


@pytest.mark.parametrize("made", [False, True])
def test_an_environment_that_cannot_run_kernels_is_refused(lab: Lab, tmp_path: Path, made: bool) -> None:
    folder = tmp_path / "environment"
    if made:
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=60)
    wrong = "ipykernel" if made else "No such file"
    with pytest.raises(SandboxUnavailable, match=rf"kernels cannot have the Python environment .*/environment: .*{wrong}"):
        lab.cells("1", environment=str(folder))


def test_an_environment_with_another_ipykernel_is_refused(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path], check=True, timeout=60)
    (site,) = tmp_path.glob("lib/python*/site-packages")
    (site / "ipykernel-1.0.dist-info").mkdir()
    (site / "ipykernel-1.0.dist-info/METADATA").write_text("Name: ipykernel\nVersion: 1.0\n")
    with pytest.raises(SandboxUnavailable, match=r"has ipykernel 1\.0, and nbrl is made for \d.*install ipykernel==\d"):
        interpreter.for_kernels(SandboxSettings(environment=str(tmp_path)))


def test_what_the_zygote_made_is_immortal_where_python_can_and_what_a_cell_makes_is_not() -> None:
    lab = Lab("zygote")
    code = """
import sys, numpy
class Mine:
    def __del__(self): print("freed")
mine = Mine()
del mine
print(*(sys.getrefcount(each) == sys.getrefcount(None) for each in (numpy.array, numpy.__doc__, get_ipython(), Mine)))
"""
    kernels = lab.value(code, preload=("numpy",))
    can = interpreter.for_kernels(SandboxSettings()).tag >= "cpython-312"
    assert kernels == f"freed\n{can} {can} {can} False\n"


def test_a_python_whose_folder_holds_peoples_files_is_not_shown_to_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    interpreter._of.cache_clear()
    monkeypatch.setenv("HOME", f"{sys.base_prefix}/lib")
    with pytest.raises(SandboxUnavailable, match=r"users' files among it: make the environment with a Python that has a folder"):
        interpreter.for_kernels(SandboxSettings(environment=str(OWN)))


def test_a_kernel_spec_may_name_an_environment() -> None:
    assert ZygoteProvisioner(environment="kernels").settings.environment == "kernels"
