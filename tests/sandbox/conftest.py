"""Every test of the sandbox runs real kernels in real bubblewrap, once for each way to start one."""

import pytest

from tests.sandbox.sandbox_lab import Lab


@pytest.fixture(params=["zygote", "bubblewrap"])
def lab(request: pytest.FixtureRequest) -> Lab:
    return Lab(request.param)
