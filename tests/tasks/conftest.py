"""Fixtures of the tests that need a real kernel."""

from collections.abc import Iterator

import pytest

from tests.sandbox.sandbox_lab import SharedLab


@pytest.fixture(scope="module")
def shared_lab() -> Iterator[SharedLab]:
    shared = SharedLab("zygote")
    yield shared
    shared.close()
