"""Fixtures of the tests that kill and damage runs."""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from nbrl.infra import prefect_server
from nbrl.infra.home import Home
from tests.durability.crash_lab import LAG, Lab


@pytest.fixture(scope="package")
def labs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Lab]]:
    """Two labs, each with a Prefect server of its own."""
    servers, started = [], []
    try:
        for name in ("one", "other"):
            folder = tmp_path_factory.mktemp(name)
            home = Home(folder / "prefect-home")
            servers.append(prefect_server.ensure(home))
            started.append(Lab(folder, prefect_server.environment(home, servers[-1].url)))
        yield started
    finally:
        for lab in started:
            lab.stop()
        for server in servers:
            server.stop()


@pytest.fixture(scope="package")
def whole(labs: list[Lab], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """The folder of a run that nothing disturbed, and its number of steps."""
    folder = tmp_path_factory.mktemp("whole")
    done = labs[0].train(folder / "root", folder / "home")
    assert done["status"] == 0, done["said"]
    return folder, done["steps"]


@pytest.fixture(scope="package")
def whole_with_lag(labs: list[Lab], tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], tuple[Path, int]]:
    """As `whole`, of runs with this lag."""

    @cache
    def made(lag: int) -> tuple[Path, int]:
        folder = tmp_path_factory.mktemp(f"whole-with-lag-{lag}")
        done = labs[0].train(folder / "root", folder / "home", overrides=LAG[lag])
        assert done["status"] == 0, done["said"]
        return folder, done["steps"]

    return made
