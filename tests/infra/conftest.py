import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nbrl.infra.home import Home
from tests.processes import mark, marked, told


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


@pytest.fixture(autouse=True)
def started() -> Iterator[str]:
    """The mark of all that the test starts. What it sets for Ray, MLflow or S3 must not reach the next one."""
    before, token = dict(os.environ), secrets.token_hex(8)
    os.environ.update(mark(token))
    yield token
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def processes(started: str) -> Callable[[str], list[int]]:
    """Finds the living processes that this test started, however deep, with a word in their command line or environment."""
    return lambda word: [pid for pid in marked(started) if word.encode() in told(pid)]
