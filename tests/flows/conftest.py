"""Fixtures of the tests of the command line, among them one small run with every real part."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import nbrl.flows.display.progress  # noqa: F401  # a console made while a test sets COLUMNS would keep that width
from nbrl.infra import prefect_server
from nbrl.infra.home import Home
from nbrl.infra.storage import Storage, StorageSettings
from tests.flows import typed
from tests.processes import check_gone, mark

NBRL = Path(sys.executable).with_name("nbrl")
SMALL = [
    "iterations=3",
    "rollout.prompts=8",
    "rollout.group_size=4",
    "evaluate.questions=12",
    "select.drop_rate=0.0",
    "environments.world.train=64",
    "environments.world.held_out=12",
]


def command(home: Path, run: str, *overrides: str) -> list[str]:
    settings = [*SMALL, *overrides]
    return [str(NBRL), "train", "tiny-cpu", "--run", run, "--home", str(home), *(part for s in settings for part in ("--set", s))]


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("loop")


@pytest.fixture(scope="session")
def trained(home: Path) -> Iterator[subprocess.CompletedProcess[str]]:
    done = subprocess.run(
        command(home, "small", "iterations=2"), capture_output=True, text=True, timeout=600, env=mark("trained"), check=False
    )
    yield done
    check_gone("trained")


@pytest.fixture(scope="session")
def prefect(home: Path) -> Iterator[None]:
    """A Prefect server that all commands of this home join, instead of starting one each."""
    server = prefect_server.ensure(Home(home))
    yield
    server.stop()


@pytest.fixture(scope="session")
def storage(home: Path, trained: subprocess.CompletedProcess[str]) -> Storage:
    assert trained.returncode == 0, trained.stderr[-3000:]
    return Storage(StorageSettings(root=f"{home}/storage"))


@pytest.fixture(scope="session", autouse=True)
def ended_forks() -> Iterator[None]:
    yield
    typed.end()
