"""Set-up takes packages from where pip would: another index, a folder of wheels, behind a company's certificate."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.infra.package_index import serving, write_certificate, write_index, write_wheel

pytestmark = pytest.mark.process

HERE = Path(__file__).parents[2]
UV = shutil.which("uv") or str(HERE / ".venv-uv/bin/uv")
PYTHON = Path(sys.base_prefix, "bin/python3")  # what set-up begins with: it has pip, environments of uv do not
KEPT = ("PATH", "HOME", "LANG")


def run(folder: Path, script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run `script` after packages.sh, with nothing of this process's settings for pip, uv or certificates."""
    environment = {name: os.environ[name] for name in KEPT if name in os.environ} | variables
    environment |= {"PIP_CONFIG_FILE": variables.get("PIP_CONFIG_FILE", os.devnull), "UV_CACHE_DIR": f"{folder}/cache"}
    environment["PATH"] = f"{Path(UV).parent}:{environment['PATH']}"
    sourced = f"cd {HERE}; . infra/setup/packages.sh; use_pips_sources; cd {folder}"
    whole = f"set -euo pipefail; python={PYTHON}; {sourced}; {script}"
    return subprocess.run(
        ["bash", "-c", whole], cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.fixture
def locked(tmp_path: Path) -> Path:
    """A folder with a project that needs the package `probe`, locked at an index that is gone; `index/` has the same."""
    wheel = write_wheel(tmp_path / "wheels", "probe")
    write_index(tmp_path / "index", wheel)
    certificate = write_certificate(tmp_path)
    project = tmp_path / "project"
    project.mkdir()
    (project / "pyproject.toml").write_text(
        '[project]\nname = "mine"\nversion = "1"\nrequires-python = ">=3.11"\ndependencies = ["probe"]\n'
        "[tool.uv]\npackage = false\n"
    )
    with serving(tmp_path / "index", certificate) as url:
        done = run(
            tmp_path, "uv lock --quiet --project project", PIP_CERT=str(certificate), PIP_INDEX_URL=url, UV_PYTHON=sys.executable
        )
        assert done.returncode == 0, done.stderr
    return tmp_path


@pytest.mark.more
@pytest.mark.parametrize("where", ["variable", "file"])
def test_what_is_locked_comes_from_the_index_that_pip_uses_behind_its_certificate(locked: Path, where: str) -> None:
    with serving(locked / "index", locked / "company.pem") as url:
        settings = {"PIP_INDEX_URL": url, "PIP_CERT": f"{locked}/company.pem"}
        if where == "file":
            (locked / "pip.conf").write_text(f"[global]\nindex-url = {url}\ncert = {locked}/company.pem\n")
            settings = {"PIP_CONFIG_FILE": f"{locked}/pip.conf"}
        done = run(locked, "synced made project", **settings)
        assert done.returncode == 0, done.stderr
        # With the authority among the system's own, as SSL_CERT_FILE names them, it needs no setting of pip's.
        again = run(locked, "synced again project", PIP_INDEX_URL=url, SSL_CERT_FILE=f"{locked}/company.pem")
        assert again.returncode == 0, again.stderr
    for folder in ("made", "again"):
        subprocess.run([f"{locked}/{folder}/bin/python", "-c", "import probe"], check=True)


@pytest.mark.more
def test_another_file_of_the_same_name_is_not_installed(locked: Path) -> None:
    wheel = locked / "wheels/probe-1.0-py3-none-any.whl"
    with wheel.open("ab") as file:
        file.write(b"\0")
    write_index(locked / "other", wheel)
    with serving(locked / "other", locked / "company.pem") as url:
        done = run(locked, "synced made project", PIP_INDEX_URL=url, PIP_CERT=f"{locked}/company.pem")
    assert done.returncode == 1
    assert "ash" in done.stderr  # the hash is what is wrong
    assert not list((locked / "made").rglob("probe.py"))


@pytest.mark.more
@pytest.mark.parametrize("alone", [pytest.param("", marks=pytest.mark.more), "true"])
def test_what_is_locked_comes_from_folders_of_wheels_and_missing_ones_are_skipped(locked: Path, alone: str) -> None:
    links = f"{locked}/nowhere {locked}/wheels"
    done = run(
        locked,
        "synced made project",
        PIP_FIND_LINKS=links,
        PIP_NO_INDEX=alone,
        UV_HTTP_RETRIES="0",
        UV_DEFAULT_INDEX=alone and "",
    )
    assert done.returncode == 0, done.stderr
    subprocess.run([f"{locked}/made/bin/python", "-c", "import probe"], check=True)


@pytest.mark.more
def test_what_is_locked_comes_from_a_further_index_behind_the_bundle_that_pip_trusts(locked: Path) -> None:
    with serving(locked / "index", locked / "company.pem") as url:
        bundle = {"REQUESTS_CA_BUNDLE": f"{locked}/company.pem"}
        done = run(locked, "synced made project", PIP_EXTRA_INDEX_URL=url, UV_HTTP_RETRIES="0", **bundle)
    assert done.returncode == 0, done.stderr
    subprocess.run([f"{locked}/made/bin/python", "-c", "import probe"], check=True)


@pytest.mark.more
def test_indexes_that_are_missing_folders_are_skipped_and_uvs_own_settings_stay(locked: Path) -> None:
    said = run(locked, 'echo "$UV_INDEX"', PIP_EXTRA_INDEX_URL=f"https://a/simple file://{locked}/nowhere file://{locked}/index")
    assert said.stdout.split() == ["https://a/simple", f"file://{locked}/index"]
    own = run(locked, 'echo "$UV_INDEX $UV_HTTP_TIMEOUT"', PIP_EXTRA_INDEX_URL="https://a", UV_INDEX="https://b", PIP_TIMEOUT="7")
    assert own.stdout.split() == ["https://b", "7"]


@pytest.mark.more
@pytest.mark.parametrize("certificate", [True, False])
def test_what_could_not_be_reached_is_said_in_a_line(locked: Path, certificate: bool) -> None:
    with serving(locked / "index", locked / "company.pem") as url:
        pass
    settings = {"PIP_INDEX_URL": url, "UV_HTTP_RETRIES": "0"}
    if not certificate:
        with serving(locked / "index", locked / "company.pem") as url:
            done = run(locked, "synced made project", PIP_INDEX_URL=url, UV_HTTP_RETRIES="0")
        assert "certificate" in done.stderr
    else:
        done = run(locked, "synced made project", **settings)
    assert done.returncode == 1
    assert done.stderr.startswith("setup: made could not be installed: ")
    assert len(done.stderr.splitlines()) == 1
    assert url in done.stderr
