"""Engines that end or fall silent are started again with the weights they served, and requests wait for them."""

import asyncio
import os
import re
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from nbrl.agent.messages import Prompt
from nbrl.agent.policies.sglang import SglangPolicy, engine_session
from nbrl.agent.policy import Generation, Sampling
from nbrl.infra.engine.settings import EngineSettings
from nbrl.infra.errors import EngineError
from nbrl.tasks.services import sglang_fleet
from nbrl.tasks.services.sglang_fleet import Served, SglangFleet
from tests.processes import descendants, told

TINY = Path(__file__).parents[2] / "infra/policies/tiny"
SETTINGS = EngineSettings(device="cpu", max_total_tokens=8192, seeded_sampling=True)


class Server:
    """A server without a process. `alive` can be taken away; `again` gives the next one, or fails if it is to."""

    def __init__(self, name: str = "engine 0", fails: bool = False) -> None:
        self.name, self.log, self.lives, self.fails = name, Path("engine-0.log"), True, fails
        self.settings = SETTINGS
        self.started: list[tuple[Path, str, Path | None]] = []

    def alive(self) -> bool:
        return self.lives

    def ending(self) -> str:
        return "killed by signal 9"

    def stop(self) -> None:
        self.lives = False

    def again(self, model: Path, version: str, adapter: Path | None) -> "Server":
        self.started.append((model, version, adapter))
        self.lives = True
        return self


class Client:
    """A client of a server without a process."""

    def __init__(self, version: str) -> None:
        self.url, self.adapter, self.version, self.answering = "http://engine", None, version, True

    async def weights_version(self) -> str:
        return self.version

    async def answers(self, limit_s: float) -> bool:
        return self.answering


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"LOOK_S": 0.01, "PROBE_S": 0.02, "SILENT_S": 0.1}.items():
        monkeypatch.setattr(sglang_fleet, name, value)


def watched(server: Server, client: Client, act: Callable[[], None], until: Callable[[SglangFleet], bool]) -> SglangFleet:
    """The fleet, watched until what is to come of the `act`."""

    def wait(servers: list[Any]) -> None:
        if server.fails:
            server.lives = False
            raise EngineError("it ended while starting")

    async def work() -> SglangFleet:
        servers: list[Any] = [server]
        clients: list[Any] = [client]
        fleet = SglangFleet(servers, clients, Path("initial"), None, Served(Path("checkpoint"), "3"), said.append)
        watching = asyncio.create_task(fleet._watch(0))
        act()
        async with asyncio.timeout(30):
            while not until(fleet):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        watching.cancel()
        return fleet

    said.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sglang_fleet, "wait", wait)
        return asyncio.run(work())


said: list[str] = []


def test_an_engine_that_ended_serves_the_same_weights_again_and_one_line_tells_of_it() -> None:
    server = Server()
    watched(server, Client("3"), server.stop, lambda fleet: bool(said))
    assert server.started == [(Path("checkpoint/hf"), "3", None)]
    assert said == ["engine 0 ended (killed by signal 9); started again in 0 s, nothing was lost"]


def test_a_silent_engine_counts_as_ended() -> None:
    server, client = Server(), Client("3")

    def fall_silent() -> None:
        client.answering = False

    watched(server, client, fall_silent, lambda fleet: bool(said))
    assert said[0].startswith("engine 0 did not answer for 0.1 s; started again")


def test_an_engine_that_ends_again_and_again_ends_the_run() -> None:
    server = Server(fails=True)

    def ended(fleet: SglangFleet) -> bool:
        return fleet._failure is not None

    fleet = watched(server, Client("3"), server.stop, ended)
    assert len(server.started) == 5
    with pytest.raises(EngineError, match=r"engine 0 ended .* no more than 5 restarts in 10 minutes are made; .*engine-0\.log"):
        fleet.check_health()


def test_other_weights_after_a_start_are_an_error() -> None:
    server = Server()
    fleet = watched(server, Client("2"), server.stop, lambda fleet: fleet._failure is not None)
    with pytest.raises(EngineError, match="engine 0 serves weights '2' after a start with '3'"):
        fleet.check_health()


def scheduler(others: set[int]) -> int:
    """The process of the fleet's only engine that computes; `others` ran before the fleet did."""
    (found,) = [pid for pid in descendants(os.getpid(), others) if told(pid).startswith(b"sglang::scheduler")]
    return found


@pytest.mark.engine
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_request_outlives_its_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    """It is answered by the engine that was started again, with the tokens that it would have had from the first."""
    monkeypatch.setattr(sglang_fleet, "SILENT_S", 3.0)
    monkeypatch.setattr(sglang_fleet, "PROBE_LIMIT_S", 2.0)
    said: list[str] = []
    others = set(descendants(os.getpid()))

    async def work() -> None:
        async with AsyncExitStack() as stack:
            fleet = await SglangFleet.start(stack, SETTINGS, TINY, tmp_path, "7", say=said.append)
            session = await stack.enter_async_context(engine_session(300))
            policy = SglangPolicy(session, fleet.addresses[0].url, [], Sampling(), seeded=True, away_s=200)

            def asked() -> asyncio.Task[Generation]:
                return asyncio.create_task(policy.generate(Prompt([[5, 6, 7, 8]], []), 400, seed=3))

            before = await asked()
            waiting = asked()
            await asyncio.sleep(0.3)
            os.kill(scheduler(others), number)
            after = await waiting
            assert (after.token_ids, after.weights_version) == (before.token_ids, "7")
            assert policy.interrupted
            fleet.check_health()
            assert len(said) == 1
            how = (
                r"engine 0 ended \((its scheduler ended: )?killed by signal 9\)"
                if number == signal.SIGKILL
                else "did not answer for 3 s"
            )
            assert re.search(how + r"; started again in \d+ s, nothing was lost", said[0])

    asyncio.run(work())
