"""Weights go from rank 0 straight into real SGLang servers on the CPU: all of them arrive, or none is served."""

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from safetensors.torch import load_file, save_file

from nbrl.infra.engine.client import EngineClient
from nbrl.infra.engine.settings import EngineSettings
from nbrl.infra.node_cache import PlacedFolder
from nbrl.tasks.learner.proof import ProofSequence
from nbrl.tasks.services.engine import Served
from nbrl.tasks.services.sglang_fleet import SglangFleet
from nbrl.tasks.services.weight_broadcast import WeightBroadcast
from tests.processes import descendants, told
from tests.tasks.engines import HereEngine
from tests.tasks.learner import update_lab
from tests.tasks.learner.sending_lab import SendingRank

pytestmark = [pytest.mark.engine, pytest.mark.more, pytest.mark.timeout(300)]

CANARY = [5, *range(40)]
PROOF = [ProofSequence(token_ids=CANARY, first=1, logprobs=[0.0] * 40)]
LIMIT_S = 5.0


@pytest.fixture(scope="module")
def checkpoints(policy: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, PlacedFolder]:
    """Of other weights and, under `old`, of the initial ones."""
    root = tmp_path_factory.mktemp("checkpoints")
    for name, factor in {"old": 1.0, "new": 1.25}.items():
        shutil.copytree(policy, root / name / "hf")
        weights = {key: weight * factor for key, weight in load_file(policy / "model.safetensors").items()}
        save_file(weights, root / name / "hf/model.safetensors", {"format": "pt"})
    return {name: PlacedFolder(update_lab.key(root / name), update_lab.STORAGE) for name in ("old", "new")}


@dataclass
class Lab:
    """A fleet with a source of weights; `asked` are the paths of the requests to its engines, in turn."""

    fleet: SglangFleet
    engines: list[HereEngine]
    rank: SendingRank
    source: WeightBroadcast
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    then: Callable[[str, int], Any] = lambda path, times: None  # called after each of them

    async def scores(self) -> list[list[float]]:
        return [await engine.client.score(CANARY) for engine in self.engines]

    async def versions(self) -> list[str]:
        return [await engine.client.weights_version() for engine in self.engines]


@asynccontextmanager
async def lab(policy: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, count: int = 1) -> AsyncIterator[Lab]:
    settings = EngineSettings(device="cpu", max_total_tokens=4096, request_timeout_s=LIMIT_S)
    async with AsyncExitStack() as stack:
        rank = SendingRank()
        stack.callback(rank.close)
        engines = [HereEngine(settings, policy, folder / f"logs-{number}") for number in range(count)]
        for number, engine in enumerate(engines):
            engine.name = f"engine {number}"
            stack.push_async_callback(engine.stop)
            await engine.start([Served(None, "0")])
        said: list[str] = []
        fleet = SglangFleet(engines, Served(None, "0"), say=said.append)
        made = Lab(fleet, engines, rank, WeightBroadcast(rank, 1, False, False, LIMIT_S), said)
        call = EngineClient._call

        async def watched(client: EngineClient, method: str, path: str, body: Any = None) -> httpx.Response:
            answer = await call(client, method, path, body)
            made.asked.append(path)
            made.then(path, made.asked.count(path))
            return answer

        monkeypatch.setattr(EngineClient, "_call", watched)
        yield made


@pytest.fixture
def others() -> set[int]:
    """Processes that ran before the test's."""
    return set(descendants(os.getpid()))


def test_two_engines_get_weights_and_the_old_ones_again_without_their_files(
    policy: Path, checkpoints: dict[str, PlacedFolder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with lab(policy, tmp_path, monkeypatch, 2) as made:
            before = await made.scores()
            for version, name in (("1", "new"), ("2", "old")):
                await made.fleet.publish(checkpoints[name], version, made.source)
                assert await made.versions() == [version, version]
                for finding in await made.fleet.prove(checkpoints[name], version, PROOF):
                    assert finding.weights is not None
                    assert (finding.weights.equal, finding.weights.different, finding.weights.unproved) == (18, (), ())
                moved = max(abs(a - b) for a, b in zip((await made.scores())[0], before[0], strict=True))
                assert moved > 0.5 if name == "new" else moved == 0
            assert await made.scores() == before
            assert made.said == []
            assert "/update_weights_from_disk" not in made.asked
            assert made.asked.count("/update_weights_from_distributed") > 2 * 2 * 5

    asyncio.run(scenario())


def test_a_sender_that_dies_in_the_middle_leaves_nothing_half_served(
    policy: Path, checkpoints: dict[str, PlacedFolder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with lab(policy, tmp_path, monkeypatch) as made:
            client, seen = made.engines[0].client, list[str]()
            waiting: list[asyncio.Task[list[float]]] = []

            def cut(path: str, times: int) -> None:
                if (path, times) == ("/update_weights_from_distributed", 2):
                    made.rank.end(signal.SIGKILL)
                    waiting.append(asyncio.create_task(client.score(CANARY)))

            monkeypatch.setattr(made, "then", cut)
            publish = client.publish

            async def fallen_back(*given: Any) -> float:
                seen.append(await client.weights_version())
                seen.append(str(waiting[0].done()))
                return await publish(*given)

            monkeypatch.setattr(client, "publish", fallen_back)
            await made.fleet.publish(checkpoints["new"], "1", made.source)
            assert seen == ["a part of 1", "False"]
            assert len(made.said) == 1
            assert "weights 1 did not go from the learner to the engines, which load them from the storage: " in made.said[0]
            assert await made.versions() == ["1"]
            (finding,) = await made.fleet.prove(checkpoints["new"], "1", PROOF)
            assert finding.weights is not None
            assert (finding.weights.equal, finding.weights.different) == (18, ())
            assert await waiting[0] == (await made.scores())[0]
            await made.fleet.publish(checkpoints["old"], "2", made.source)  # the learner is still away
            assert await made.versions() == ["2"]
            assert "the learner has ended" in made.said[1]

    asyncio.run(scenario())


def test_a_silent_sender_costs_its_engine_a_restart_and_no_more(
    policy: Path, checkpoints: dict[str, PlacedFolder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with lab(policy, tmp_path, monkeypatch) as made:

            def stop(path: str, times: int) -> None:
                if (path, times) == ("/update_weights_from_distributed", 2):
                    made.rank.end(signal.SIGSTOP)

            monkeypatch.setattr(made, "then", stop)
            monkeypatch.setattr("nbrl.tasks.services.sglang_fleet.PROBE_LIMIT_S", 2.0)
            async with asyncio.timeout(120):
                await made.fleet.publish(checkpoints["new"], "1", made.source)
            assert (
                "did not answer /update_weights_from_distributed within 5 s" in made.said[0]
                or "the learner did not" in made.said[0]
            )
            assert "engine 0 ended while weights were sent; started again in" in made.said[1]
            assert await made.versions() == ["1"]
            (finding,) = await made.fleet.prove(checkpoints["new"], "1", PROOF)
            assert finding.weights is not None
            assert (finding.weights.equal, finding.weights.different) == (18, ())

    asyncio.run(scenario())


def test_an_engine_that_dies_in_the_middle_is_started_again_and_the_other_one_is_whole(
    policy: Path, checkpoints: dict[str, PlacedFolder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: set[int]
) -> None:
    async def scenario() -> None:
        async with lab(policy, tmp_path, monkeypatch, 2) as made:
            schedulers = [pid for pid in descendants(os.getpid(), others) if told(pid).startswith(b"sglang::scheduler")]

            def kill(path: str, times: int) -> None:
                if (path, times) == ("/update_weights_from_distributed", 3):
                    os.kill(max(schedulers), signal.SIGKILL)

            monkeypatch.setattr(made, "then", kill)
            await made.fleet.publish(checkpoints["new"], "1", made.source)
            assert await made.versions() == ["1", "1"]
            assert [line for line in made.said if "started again" in line]
            for finding in await made.fleet.prove(checkpoints["new"], "1", PROOF):
                assert finding.weights is not None
                assert (finding.weights.equal, finding.weights.different) == (18, ())
            await made.fleet.publish(checkpoints["old"], "2", made.source)  # with the new engine in the group
            assert await made.versions() == ["2", "2"]
            assert len(made.said) == 2

    asyncio.run(scenario())
