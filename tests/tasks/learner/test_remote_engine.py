"""Engines as actors of a real Ray cluster: what dies is started again, and who has no key is refused."""

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
import ray
from ray.util.placement_group import remove_placement_group

from nbrl.infra.engine.actor import EngineActors, EnginePlace, EnginePlan, reserve
from nbrl.infra.engine.settings import EngineSettings
from nbrl.infra.errors import EngineError
from nbrl.infra.node_cache import NodeSettings, PlacedFolder
from nbrl.tasks.services import engine as engine_module
from nbrl.tasks.services import sglang_fleet
from nbrl.tasks.services.engine import RemoteEngine, Served
from nbrl.tasks.services.sglang_fleet import SglangFleet
from tests.processes import descendants, told

pytestmark = [pytest.mark.ray, pytest.mark.engine, pytest.mark.usefixtures("cluster")]

TINY = PlacedFolder(str(Path(__file__).parents[3] / "infra/policies/tiny"))
KEY = "a-key-of-the-run"


@pytest.fixture
def plan(tmp_path: Path) -> EnginePlan:
    settings = EngineSettings(device="cpu", max_total_tokens=4096, request_timeout_s=60)
    return EnginePlan(settings=settings, logs=tmp_path / "logs", nodes=NodeSettings(), key=KEY)


@contextmanager
def reserved(settings: EngineSettings) -> Iterator[list[EnginePlace]]:
    """As `reserve`, until the body ends."""
    places = reserve(settings, gpus=0)
    try:
        yield places
    finally:
        for group in {place.group.id: place.group for place in places}.values():
            remove_placement_group(group)


async def fleet_of(stack: AsyncExitStack, plan: EnginePlan, said: list[str]) -> SglangFleet:
    return await SglangFleet.start(stack, plan, TINY, Served(None, "7"), said.append)


async def until_said(said: list[str]) -> None:
    async with asyncio.timeout(120):
        while not said:  # noqa: ASYNC110
            await asyncio.sleep(0.1)


@pytest.mark.more
def test_requests_without_the_key_are_refused_and_it_stands_in_no_log(plan: EnginePlan, tmp_path: Path) -> None:
    async def work() -> None:
        async with AsyncExitStack() as stack:
            fleet = await fleet_of(stack, plan, [])
            (address,) = fleet.addresses("7")
            assert address.key == KEY
            body = {"input_ids": [5], "sampling_params": {"max_new_tokens": 1}}
            change = {"model_path": TINY.place, "weight_version": "8"}
            asked = {"/generate": body, "/update_weights_from_disk": change, "/weights_checker": {"action": "x"}}
            async with httpx.AsyncClient(base_url=address.url, trust_env=False, timeout=60) as client:
                for path, sent in asked.items():
                    assert (await client.post(path, json=sent)).status_code == 401
                    wrong = {"Authorization": f"Bearer {KEY}x"}
                    assert (await client.post(path, json=sent, headers=wrong)).status_code == 401
            await fleet.publish(None, "9")
            assert await fleet._engines[0].client.weights_version() == "9"

    asyncio.run(work())
    log = (tmp_path / "logs/engine-0.log").read_text(errors="replace")
    assert "server_args" in log.lower()
    assert KEY not in log


@pytest.mark.more
@pytest.mark.parametrize("whole", [False, True], ids=["the engine", "its actor too"])
def test_what_dies_is_started_again_with_the_weights_it_served(
    plan: EnginePlan, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    monkeypatch.setattr(sglang_fleet, "PROBE_LIMIT_S", 2.0)
    said: list[str] = []

    async def work() -> None:
        async with AsyncExitStack() as stack:
            others = set(descendants(os.getpid()))  # an engine that tests share may be among them
            fleet = await fleet_of(stack, plan, said)
            engine = fleet._engines[0]
            assert isinstance(engine, RemoteEngine)
            if whole:
                ray.kill(engine._actors.first)
            else:
                started = set(descendants(os.getpid())) - others
                (scheduler,) = [pid for pid in started if told(pid).startswith(b"sglang::scheduler")]
                os.kill(scheduler, signal.SIGKILL)
            await until_said(said)
            fleet.check_health()
            assert await engine.client.weights_version() == "7"
            assert [address.url for address in fleet.addresses("7")] == [engine.client.url]

    asyncio.run(work())
    assert len(said) == 1
    assert said[0].startswith("engine 0 ended (")
    assert said[0].endswith("nothing was lost")


def test_an_engine_that_cannot_start_is_told_as_it_is(plan: EnginePlan, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()

    async def work(place: EnginePlace) -> None:
        engine = RemoteEngine(plan, 0, PlacedFolder(str(tmp_path / "empty")), place)
        try:
            with pytest.raises(EngineError, match=r"/empty holds no model weights \(\*\.safetensors\)") as caught:
                await engine.start([Served(None, "0")])
            assert "\n" not in str(caught.value)
        finally:
            await engine.stop()

    with reserved(plan.settings) as (place,):
        asyncio.run(work(place))


def test_an_engine_for_which_no_machine_has_room_says_so(plan: EnginePlan, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("SLOW_S", "PLACE_S", "STOP_S"):
        monkeypatch.setattr(engine_module, limit, 1.0)
    nowhere = plan.model_copy(update={"settings": plan.settings.model_copy(update={"resources": {"nowhere": 1.0}})})

    async def work(place: EnginePlace) -> None:
        engine = RemoteEngine(nowhere, 0, TINY, place)
        engine._port = 30000  # as after a start
        try:
            with pytest.raises(EngineError, match=r"^engine 0 cannot be placed: no machine of the cluster has room for it"):
                await engine.start([Served(None, "0")])
        finally:
            await engine.stop()

    with reserved(nowhere.settings) as (place,):
        asyncio.run(work(place))


def test_engines_that_wait_for_room_say_so(plan: EnginePlan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sglang_fleet, "ROOM_S", 0.5)
    nowhere = plan.model_copy(update={"settings": plan.settings.model_copy(update={"resources": {"nowhere": 1.0}})})
    said: list[str] = []

    async def work() -> None:
        async with AsyncExitStack() as stack:
            starting = asyncio.create_task(fleet_of(stack, nowhere, said))
            await until_said(said)
            starting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await starting

    asyncio.run(work())
    assert said == ["the engines wait until the cluster has room for all of them, see engine.resources, GPUs and `ray status`"]


def test_either_all_engines_get_a_place_or_none(plan: EnginePlan) -> None:
    def asked(count: int) -> EngineSettings:
        return plan.settings.model_copy(update={"count": count, "resources": {"seat": 1.0}})

    with reserved(asked(3)) as too_many:  # of the cluster's two
        assert not too_many[0].group.wait(1)
        with reserved(asked(2)) as as_many:
            assert as_many[0].group.wait(30)


class ActorAt:
    """In place of an actor: it has every folder at `place`."""

    def __init__(self, place: str) -> None:
        self.path, self._place = self, Path(place)

    async def remote(self, *_: object) -> Path:
        return self._place


def test_weights_that_lie_elsewhere_on_each_machine_are_refused(plan: EnginePlan) -> None:
    async def work(place: EnginePlace) -> None:
        engine = RemoteEngine(plan, 0, TINY, place)
        engine._actors.kill()
        engine._actors = EngineActors([ActorAt("/a"), ActorAt("/a")])
        assert await engine.path(Served(None, "0")) == Path("/a")
        engine._actors = EngineActors([ActorAt("/a"), ActorAt("/b")])
        with pytest.raises(EngineError, match=r"one path on all of its machines: set nodes\.cache \(/a, /b\)"):
            await engine.path(Served(None, "0"))

    with reserved(plan.settings) as (place,):
        asyncio.run(work(place))
