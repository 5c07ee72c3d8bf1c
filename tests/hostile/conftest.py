"""Each hostile cell runs under both provisioners; after it the sibling, the zygote and the host are examined."""

from collections.abc import Iterator

import pytest

from tests.hostile.arena import Arena, Kernel


@pytest.fixture(scope="package", params=["zygote", pytest.param("bubblewrap", marks=pytest.mark.more)])
def arena(request: pytest.FixtureRequest) -> Iterator[Arena]:
    arena = Arena(request.param)
    yield arena
    arena.close()


@pytest.fixture(autouse=True)
def victim(arena: Arena) -> Iterator[Kernel]:
    """A clean kernel for the test to spoil. What must hold after any cell is asserted when the test is done with it."""
    yield arena.victim()
    arena.check()
