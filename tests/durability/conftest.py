"""Fixtures of the tests that kill and damage runs."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

from nbrl.infra import prefect_server
from nbrl.infra.home import Home
from tests.clouds import s3_server
from tests.durability.crash_lab import LAG, Lab


class Labs:
    """Labs by number, each with a Prefect server of its own, started when they are first asked for."""

    def __init__(self, folder: Callable[[str], Path]) -> None:
        self._folder, self._ending = folder, ExitStack()
        self._started: dict[int, Lab] = {}

    def __getitem__(self, number: int) -> Lab:
        if number not in self._started:
            folder = self._folder(f"lab-{number}")
            home = Home(folder / "prefect-home")
            server = prefect_server.ensure(home)
            self._ending.callback(server.stop)
            self._started[number] = Lab(folder, prefect_server.environment(home, server.url))
            self._ending.callback(self._started[number].stop)
        return self._started[number]

    def stop(self) -> None:
        self._ending.close()


@pytest.fixture(scope="package")
def labs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Labs]:
    labs = Labs(tmp_path_factory.mktemp)
    try:
        yield labs
    finally:
        labs.stop()


@pytest.fixture(scope="package")
def whole(labs: Labs, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """The folder of a run that nothing disturbed, and its number of steps."""
    folder = tmp_path_factory.mktemp("whole")
    done = labs[0].train(folder / "root", folder / "home")
    assert done["status"] == 0, done["said"]
    return folder, done["steps"]


@pytest.fixture(scope="package")
def whole_with_lag(labs: Labs, tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], tuple[Path, int]]:
    """As `whole`, of runs with this lag."""

    @cache
    def made(lag: int) -> tuple[Path, int]:
        folder = tmp_path_factory.mktemp(f"whole-with-lag-{lag}")
        done = labs[0].train(folder / "root", folder / "home", overrides=LAG[lag])
        assert done["status"] == 0, done["said"]
        return folder, done["steps"]

    return made


@pytest.fixture
def cloud_labs(labs: Labs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Lab]]:
    """Labs that reach an S3 server, one that ignores conditional writes."""
    with s3_server(tmp_path) as variables:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        started = [Lab(tmp_path / f"lab-{number}", labs[number].environment | variables) for number in range(2)]
        try:
            yield started
        finally:
            for lab in started:
                lab.stop()
