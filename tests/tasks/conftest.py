"""Fixtures of the tests that need a real kernel."""

import pytest

from tests.sandbox.sandbox_lab import SharedLab, SharedLabs


@pytest.fixture
def shared_lab(shared_labs: SharedLabs) -> SharedLab:
    return shared_labs["zygote"]
