"""Every test of the sandbox runs real kernels in real bubblewrap, once for each way to start one."""

from collections.abc import Iterator

import pytest

from tests.sandbox.sandbox_lab import Lab, SharedLab

# Recipes use the zygote.
PROVISIONERS = ["zygote", pytest.param("bubblewrap", marks=pytest.mark.more)]


@pytest.fixture(params=PROVISIONERS)
def lab(request: pytest.FixtureRequest) -> Lab:
    return Lab(request.param)


@pytest.fixture(scope="module", params=PROVISIONERS)
def shared_lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """For files whose tests look no further than into their own kernel."""
    shared = SharedLab(request.param)
    yield shared
    shared.close()
