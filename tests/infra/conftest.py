import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nbrl.infra.home import Home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture(autouse=True)
def clean_environment() -> Iterator[None]:
    """What a test sets for Ray, MLflow or S3 must not reach the next one."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


def running(word: str) -> list[int]:
    """Processes other than this one that have `word` on their command line or in their environment."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        if int(entry.name) == os.getpid():
            continue
        try:
            state = (entry / "stat").read_text().rpartition(") ")[2][0]
            text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if state not in "ZX" and word.encode() in text:
            found.append(int(entry.name))
    return found


@pytest.fixture
def processes() -> Callable[[str], list[int]]:
    return running
