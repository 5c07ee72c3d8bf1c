"""publish and the fleet: weights go live everywhere, and are proved."""

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import pytest

from nbrl.tasks.errors import BrokenInvariantError
from nbrl.tasks.nodes.publish import publish
from nbrl.tasks.runs.scope import Artifact
from nbrl.tasks.services.fleet import EngineFleet
from nbrl.tasks.services.sglang_fleet import SglangFleet
from tests.tasks.nodes.doubles import SCOPE, DoubleFleet, services

UPDATE = Artifact(path="runs/r/checkpoints/000003", digest="w", parts={SCOPE.layout.update_result: "x"})


def published(folder: Path, fleet: EngineFleet) -> Artifact:
    made = services(folder, fleet)
    made.storage.write_bytes(
        SCOPE.layout.update_result, json.dumps({"canary_token_ids": [1, 2], "canary_logprobs": [-0.5]}).encode()
    )
    return asyncio.run(publish.alone(made, SCOPE, UPDATE))


def test_the_checkpoint_of_the_update_goes_live_under_the_next_version(tmp_path: Path) -> None:
    fleet = DoubleFleet("2", error=5e-4)
    done = published(tmp_path, fleet)
    assert fleet.published == [(tmp_path / "storage/runs/r/checkpoints/000003", "3")]
    assert (done.path, done.digest, done.values["publish/canary_error"]) == (UPDATE.path, "w", 5e-4)


@pytest.mark.parametrize("error", [0.2, math.inf, math.nan])
def test_a_canary_beyond_the_tolerance_stops_the_run(tmp_path: Path, error: float) -> None:
    with pytest.raises(BrokenInvariantError, match=r"differ by .* nats on the canary, more than publish\.tolerance 0\.001"):
        published(tmp_path, DoubleFleet("2", error=error))


def test_an_engine_that_answers_with_another_version_stops_the_run(tmp_path: Path) -> None:
    with pytest.raises(BrokenInvariantError, match="serves '2' after publishing '3'"):
        published(tmp_path, DoubleFleet("2", lies="2"))


class Client:
    """An engine's client without an engine."""

    def __init__(self, version: str, logprobs: tuple[float, ...] = ()) -> None:
        self.url, self.adapter, self.version, self.logprobs = "http://engine", None, version, list(logprobs)
        self.calls: list[tuple[Any, ...]] = []

    async def weights_version(self) -> str:
        return self.version

    async def score(self, token_ids: list[int]) -> list[float]:
        return self.logprobs

    async def publish(self, path: Path, version: str) -> None:
        self.calls.append(("publish", path, version))
        self.version = version

    async def publish_adapter(self, path: Path | None, version: str) -> None:
        self.calls.append(("adapter", path, version))
        self.version = version


def fleet_of(clients: list[Client], room: Any = None) -> SglangFleet:
    given: Any = clients
    return SglangFleet([], given, Path("initial"), room)


def test_only_engines_with_another_version_are_published_to_and_the_checkpoint_is_brought_once() -> None:
    old, new, other = Client("1"), Client("2"), Client("1")
    brought: list[int] = []

    async def bring() -> Path | None:
        brought.append(1)
        return Path("checkpoint")

    fleet = fleet_of([old, new, other])
    asyncio.run(fleet.serve("2", bring))
    assert (old.calls, new.calls) == ([("publish", Path("checkpoint/hf"), "2")], [])
    assert len(brought) == 1
    asyncio.run(fleet.serve("2", bring))
    assert len(brought) == 1


def test_without_a_checkpoint_the_initial_model_is_served_and_adapters_go_alone() -> None:
    whole, adapted = Client("1"), Client("1")
    asyncio.run(fleet_of([whole]).publish(None, "0"))
    asyncio.run(fleet_of([adapted], room=object()).publish(Path("checkpoint"), "3"))
    asyncio.run(fleet_of([adapted], room=object()).publish(None, "0"))
    assert whole.calls == [("publish", Path("initial"), "0")]
    assert adapted.calls == [("adapter", Path("checkpoint/adapter"), "3"), ("adapter", None, "0")]


def test_the_proof_is_the_largest_difference_of_all_engines() -> None:
    fleet = fleet_of([Client("3", (-0.5, -1.0)), Client("3", (-0.5, -1.25))])
    assert asyncio.run(fleet.prove("3", [1, 2, 3], [-0.5, -1.0])) == 0.25
    with pytest.raises(BrokenInvariantError, match="serves weights '2' after publishing '3'"):
        asyncio.run(fleet_of([Client("3", (-0.5,)), Client("2", (-0.5,))]).prove("3", [1, 2], [-0.5]))


def test_log_probs_of_another_length_are_no_proof() -> None:
    with pytest.raises(ValueError, match="zip"):
        asyncio.run(fleet_of([Client("3", (-0.5,))]).prove("3", [1, 2, 3], [-0.5, -1.0]))
