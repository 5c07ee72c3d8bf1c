"""Fixtures of the tests of the command line."""

from collections.abc import Iterator

import pytest

from tests.flows import typed


@pytest.fixture(scope="session", autouse=True)
def ended_forks() -> Iterator[None]:
    yield
    typed.end()
