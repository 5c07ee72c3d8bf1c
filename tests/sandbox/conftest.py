"""Every test of the sandbox runs real kernels in real bubblewrap, once for each way to start one."""

import pytest

from tests.sandbox.sandbox_lab import Lab, SharedLabs

# Recipes use the zygote.
PROVISIONERS = ["zygote", pytest.param("bubblewrap", marks=pytest.mark.more)]


@pytest.fixture(params=PROVISIONERS)
def lab(request: pytest.FixtureRequest) -> Lab:
    return Lab(request.param)


@pytest.fixture(params=PROVISIONERS)
def shared_lab(request: pytest.FixtureRequest, shared_labs: SharedLabs) -> Lab:
    """For files whose tests look no further than into their own kernel."""
    return shared_labs[request.param]
