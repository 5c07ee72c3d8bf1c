"""Engines that end or fall silent are started again with the weights they served, and requests wait for them."""

import asyncio
import os
import re
import signal
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from nbrl.agent.messages import Prompt
from nbrl.agent.policies.sglang import SglangPolicy, engine_session
from nbrl.agent.policy import Generation, Sampling
from nbrl.infra.engine.settings import EngineSettings, headers
from nbrl.infra.errors import EngineError, PlaceError
from nbrl.infra.node_cache import PlacedFolder
from nbrl.tasks.services import sglang_fleet
from nbrl.tasks.services.engine import Served
from nbrl.tasks.services.sglang_fleet import SglangFleet
from tests.processes import descendants, told
from tests.tasks.engines import DoubleEngine, HereEngine

TINY = Path(__file__).parents[2] / "infra/policies/tiny"
SETTINGS = EngineSettings(device="cpu", max_total_tokens=8192, seeded_sampling=True)


class Client:
    """A client of a server without a process."""

    def __init__(self, version: str) -> None:
        self.url, self.version, self.answering = "http://engine", version, True
        self.lends, self.done = False, list[str]()

    async def weights_version(self) -> str:
        return self.version

    async def answers(self, limit_s: float) -> bool:
        return self.answering and not self.lends

    async def listens(self, limit_s: float) -> bool:
        return self.answering

    async def lend_memory(self) -> None:
        assert not self.lends  # SGLang cannot give it twice
        self.lends = True
        self.done.append("lend")

    async def take_memory_back(self) -> None:
        if not self.answering:
            raise EngineError("it cannot be reached")
        assert self.lends
        self.lends = False
        self.done.append("take back")

    async def publish(self, folder: Path, version: str, torn: bool) -> None:
        assert not self.lends
        self.version = version
        self.done.append(f"publish {version}")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"LOOK_S": 0.01, "PROBE_S": 0.02, "SILENT_S": 0.1}.items():
        monkeypatch.setattr(sglang_fleet, name, value)


CHECKPOINT = Served(PlacedFolder("checkpoint"), "3")


def watched(engine: DoubleEngine, act: Callable[[], None], until: Callable[[SglangFleet], bool]) -> SglangFleet:
    """The fleet, watched until what is to come of the `act`."""

    async def work() -> SglangFleet:
        fleet = SglangFleet([engine], CHECKPOINT, say=said.append)
        watching = asyncio.create_task(fleet._watch(0))
        act()
        async with asyncio.timeout(30):
            while not until(fleet):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        watching.cancel()
        return fleet

    said.clear()
    return asyncio.run(work())


said: list[str] = []


def ended(engine: DoubleEngine) -> Callable[[], None]:
    def end() -> None:
        engine.lives = False

    return end


def test_an_engine_that_ended_serves_the_same_weights_again_and_one_line_tells_of_it() -> None:
    engine = DoubleEngine(Client("3"))
    watched(engine, ended(engine), lambda fleet: bool(said))
    assert engine.started == [[CHECKPOINT]]
    assert said == ["engine 0 ended (killed by signal 9); started again in 0 s, nothing was lost"]


def test_a_silent_engine_counts_as_ended() -> None:
    client = Client("3")

    def fall_silent() -> None:
        client.answering = False

    watched(DoubleEngine(client), fall_silent, lambda fleet: bool(said))
    assert said[0].startswith("engine 0 did not answer for 0.1 s; started again")


@pytest.mark.parametrize(("lend", "killed"), [(True, False), (True, True), (False, False)])
def test_engines_that_share_a_gpu_lend_their_memory_until_weights_are_published(lend: bool, killed: bool) -> None:
    client = Client("3")

    class Restarted(DoubleEngine):
        async def start(self, served: Sequence[Served]) -> None:
            client.answering = True
            await super().start(served)

    engine = Restarted(client)

    async def work() -> None:
        fleet = SglangFleet([engine], CHECKPOINT, say=said.append, lend=lend)
        watching = asyncio.create_task(fleet._watch(0))
        for _ in range(2):  # for a teacher, and for the update
            await fleet.lend_memory()
        await asyncio.sleep(0.3)  # while it lends it answers no question whether it lives
        if killed:
            engine.lives = client.lends = client.answering = False
        await fleet.publish(PlacedFolder("next"), "4")
        watching.cancel()

    said.clear()
    asyncio.run(work())
    assert client.version == "4"
    given_back = ["lend", "take back"] if not killed else ["lend"]
    assert client.done == [*(given_back if lend else []), "publish 4"]
    assert len(engine.started) == (1 if killed else 0)


def test_an_engine_that_finds_no_place_ends_the_run_at_once() -> None:
    class Homeless(DoubleEngine):
        async def start(self, served: Sequence[Served]) -> None:
            self.started.append(list(served))
            raise PlaceError("engine 0 cannot be placed")

    engine = Homeless(Client("3"))
    fleet = watched(engine, ended(engine), lambda fleet: fleet._failure is not None)
    assert len(engine.started) == 1
    with pytest.raises(PlaceError, match=r"^engine 0 cannot be placed$"):
        fleet.check_health()


def test_an_engine_that_ends_again_and_again_ends_the_run() -> None:
    engine = DoubleEngine(Client("3"), fails=True)
    fleet = watched(engine, ended(engine), lambda fleet: fleet._failure is not None)
    assert len(engine.started) == 5
    with pytest.raises(
        EngineError,
        match=r"engine 0 could not be started again .* no more than 5 restarts in 10 minutes are made; .*engine-0\.log",
    ):
        fleet.check_health()


def test_other_weights_after_a_start_are_an_error() -> None:
    engine = DoubleEngine(Client("2"))
    fleet = watched(engine, ended(engine), lambda fleet: fleet._failure is not None)
    with pytest.raises(EngineError, match="engine 0 serves weights '2' after a start with '3'"):
        fleet.check_health()


def scheduler(others: set[int]) -> int:
    """The process of the fleet's only engine that computes; `others` ran before the fleet did."""
    (found,) = [pid for pid in descendants(os.getpid(), others) if told(pid).startswith(b"sglang::scheduler")]
    return found


@pytest.mark.more
@pytest.mark.engine
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_request_outlives_its_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    """It is answered by the engine that was started again, with the tokens that it would have had from the first."""
    monkeypatch.setattr(sglang_fleet, "SILENT_S", 20.0)  # a busy machine may hold up an engine that works
    monkeypatch.setattr(sglang_fleet, "PROBE_LIMIT_S", 15.0)
    said: list[str] = []
    others = set(descendants(os.getpid()))

    async def work() -> None:
        async with AsyncExitStack() as stack:
            engine = HereEngine(SETTINGS, TINY, tmp_path)
            stack.push_async_callback(engine.stop)
            await engine.start([Served(None, "7")])
            fleet = SglangFleet([engine], Served(None, "7"), say=said.append)
            watching = asyncio.create_task(fleet._watch(0))
            stack.callback(watching.cancel)
            session = await stack.enter_async_context(engine_session(300, headers(engine.client.key)))
            policy = SglangPolicy(session, fleet.addresses("7")[0].url, [], Sampling(), seeded=True, away_s=200)

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
                else "did not answer for 20 s"
            )
            assert re.search(how + r"; started again in \d+ s, nothing was lost", said[0])

    asyncio.run(work())
