"""What holds for every test: its tier, what it may start, and beside which others it runs."""

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck
from hypothesis import settings as profiles
from xdist.scheduler import LoadScopeScheduling

from nbrl.agent.errors import TokenizerError
from nbrl.agent.tokens.rendering import render, rendering
from nbrl.infra.engine.command import Door
from nbrl.infra.engine.server import EngineServer, launch, wait
from nbrl.infra.engine.settings import EngineSettings
from tests.budget import TIERS
from tests.sandbox.sandbox_lab import SharedLabs
from tests.shards import unit

pytest_plugins = ["tests.budget", "tests.shards"]

# What a terminal or a CI service says of itself decides nothing: the tests set what they look at.
for name in ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "PY_COLORS", "GITHUB_ACTIONS"):
    os.environ.pop(name, None)

# Time decides nothing: another process may hold this one up in the middle of an example.
profiles.register_profile(
    "nbrl", parent=profiles.default, deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=40
)
profiles.register_profile("thorough", parent=profiles.get_profile("nbrl"), max_examples=300)
profiles.load_profile("nbrl")

# The most expensive first, which is the order of the tests: what takes minutes should not be the last thing that all wait for.
# Whoever uses one of these has something of that tier.
FIXTURES = {
    "tiny_engine": "engine",
    "cluster": "ray",
    "lab": "sandbox",
    "shared_lab": "sandbox",
    "arena": "sandbox",
    "s3": "process",
}
INPROCESS = TIERS.index("inprocess")
STARTS = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"})


def tier(item: pytest.Item) -> int:
    """Return its place in TIERS; a test with several markers belongs to the most expensive, one without any starts no process."""
    return next((number for number, name in enumerate(TIERS) if item.get_closest_marker(name)), INPROCESS)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    for item in items:
        for name in {FIXTURES[fixture] for fixture in item.fixturenames if fixture in FIXTURES}:
            item.add_marker(name)
        if getattr(item.obj, "is_hypothesis_test", False):
            item.add_marker("properties")
        if tier(item) == INPROCESS:
            item.add_marker("inprocess")
    files: dict[str, int] = {}
    for item in items:
        files[item.location[0]] = min(tier(item), files.get(item.location[0], INPROCESS))
    items.sort(key=lambda item: files[item.location[0]])


_started: list[str] = []


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if event in STARTS:
        _started.append(f"{event} {arguments[:2]}"[:200])


sys.addaudithook(_watch)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    _started.clear()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """A test without a tier starts no process: so the tiers stay true."""
    yield
    if tier(item) == INPROCESS and _started:
        pytest.fail(f"it started a process and has no marker of a tier ({', '.join(TIERS)}): {_started[0]}", pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Iterator[Any]:
    """A failure may show half a character of hostile text, which xdist cannot carry: it would end the whole session."""
    return _carried((yield))


def _carried(value: Any) -> Any:
    match value:
        case str():
            return value.encode(errors="backslashreplace").decode()
        case dict():
            return {_carried(key): _carried(each) for key, each in value.items()}
        case list():
            return [_carried(each) for each in value]
        case tuple():  # the place and the reason of a skipped test: reports in JUnit's XML take it apart as a tuple
            return tuple(_carried(each) for each in value)
    return value


@pytest.fixture(scope="session", autouse=True)
def _state(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What a user trusts is remembered beside the session's files, for all its processes."""
    base = tmp_path_factory.getbasetemp()
    os.environ["XDG_STATE_HOME"] = str((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "state")


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop() -> Iterator[Any]:
    """One process renders the chat templates of all tests, so that a test without a tier may load a tokenizer."""
    with rendering():
        with suppress(TokenizerError):  # of a Python whose packages are on PYTHONPATH alone, as in tests/sandbox/as_user.py
            render("", "2024-07-26", {})
        return (yield)


@pytest.fixture(scope="session")
def tiny_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineServer]:
    """A server of the shipped policy, whose weights stay, as programs have it: it loads a tokenizer, and has a chat API."""
    tiny = Path(__file__).parents[1] / "infra/policies/tiny"
    settings = EngineSettings(device="cpu", max_total_tokens=32768, request_timeout_s=60)
    (server,) = wait([launch(settings, tiny, tmp_path_factory.mktemp("logs"), door=Door(stops=True))])
    yield server
    server.stop()


@pytest.fixture(scope="session")
def shared_labs() -> Iterator[SharedLabs]:
    labs = SharedLabs()
    yield labs
    labs.close()


class _Units(LoadScopeScheduling):
    """Deals tests out to pytest-xdist's workers by whole files, and what shares something expensive over files together."""

    def _split_scope(self, nodeid: str) -> str:
        return unit(nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    config.option.loadscopereorder = False  # the order is that of the tiers
    return _Units(config, log)
