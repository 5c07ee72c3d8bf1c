"""The runner without kernels and engines: what is on storage when, and what that costs."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nbrl.agent.episode import Task
from nbrl.agent.policy import Sampling
from nbrl.agent.trajectory import Node, Status, Trajectory, from_table
from nbrl.infra.engine.settings import EngineSettings
from nbrl.infra.errors import StorageError
from nbrl.infra.home import Home
from nbrl.infra.placed_folder import PlacedFolder
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.layout import RoundLayout
from nbrl.tasks.nodes.rollout import roll_out
from nbrl.tasks.rollout.episodes import failed
from nbrl.tasks.rollout.plan import EngineAddress, EnvironmentPlan, RolloutBatch, RoundPlan, RunnerPlan
from nbrl.tasks.rollout.runner import Live, Runner
from nbrl.tasks.rollout.samplers import EngineSamplers
from nbrl.tasks.runs.recipes import load
from tests.clouds import Proxy, s3_server
from tests.tasks.nodes.doubles import services

LAYOUT = RoundLayout("runs/r/iterations/000000/round-0")


class PlayingRunner(Runner):
    """Plays each trajectory in `seconds` and counts how often; those named in `fails` fail."""

    seconds, fails = 0.0, frozenset[str]()

    def __init__(self, plan: RunnerPlan) -> None:
        super().__init__(plan)
        self.played: list[str] = []

    async def start(self) -> None:
        nobody: Any = None
        self._live = Live(nobody, EngineSamplers(self._plan), AsyncExitStack())

    async def _attempts(self, task: Task, files: Any, new: Any, plan: RoundPlan) -> Trajectory:
        await asyncio.sleep(self.seconds)
        self.played.append(task.id)
        if task.id in self.fails:
            return failed(task, "the wire was cut")
        nodes = [Node(parent=-1, kind="system", step=-1, token_ids=[0]), sampled()]
        return failed(task, "").model_copy(update={"status": Status.ANSWERED, "answer": task.id, "nodes": nodes})


def sampled() -> Node:
    return Node(parent=0, kind="sampled", step=0, token_ids=[1, 2], logprobs=[-0.5, -0.5], weights_version="0")


def plan(storage: Storage, episodes: int = 8) -> RunnerPlan:
    config = load("tiny-cpu", [f"rollout.episodes_per_runner={episodes}"])
    environments = {"e": EnvironmentPlan()}
    model = PlacedFolder(config.policy.path)
    return RunnerPlan(model, environments, "attached", storage, config.agent, config.sandbox, config.rollout, Home())


def rows(count: int) -> list[dict[str, Any]]:
    return [
        {"id": str(n), "group": "g", "sample": n, "question": "q", "ability": "qa", "seed": n}
        | {"environment": "e", "files": [], "collect": [], "answers": []}
        for n in range(count)
    ]


def batch(count: int, *earlier: str) -> RolloutBatch:
    return RolloutBatch(
        rows(count), [EngineAddress("double://")], RoundPlan(LAYOUT.unfinished, earlier, Sampling(), EngineSettings())
    )


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(StorageSettings(root=str(tmp_path / "storage")))


def test_all_of_a_batch_comes_back_in_its_order_and_is_on_storage(storage: Storage) -> None:
    runner = PlayingRunner(plan(storage))
    table = asyncio.run(runner.run(batch(32)))
    assert table["id"].to_pylist() == [str(n) for n in range(32)]
    assert asyncio.run(runner.finished())[1] == 32
    stored = [row for key in storage.list(LAYOUT.unfinished) for row in storage.read_table(key)["id"].to_pylist()]
    assert sorted(stored, key=int) == table["id"].to_pylist()


def test_rows_of_a_run_that_began_before_there_were_environments_are_of_the_only_one(storage: Storage) -> None:
    runner = PlayingRunner(plan(storage))
    earlier = [row | {"environment": ""} for row in rows(2)]
    work = RolloutBatch(earlier, [EngineAddress("double://")], RoundPlan(LAYOUT.unfinished, (), Sampling(), EngineSettings()))
    assert asyncio.run(runner.run(work))["environment"].to_pylist() == ["e", "e"]


def test_the_next_attempt_plays_what_failed_and_what_is_not_there(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlayingRunner, "fails", frozenset({"3"}))
    first = asyncio.run(PlayingRunner(plan(storage)).run(batch(6)))
    assert from_table(first)[3].status is Status.FAILED
    monkeypatch.setattr(PlayingRunner, "fails", frozenset())
    runner = PlayingRunner(plan(storage))
    second = asyncio.run(
        runner.run(
            RolloutBatch(
                rows(8), [EngineAddress("double://")], RoundPlan("elsewhere", (LAYOUT.unfinished,), Sampling(), EngineSettings())
            )
        )
    )
    assert runner.played == ["3", "6", "7"]
    assert second["status"].to_pylist() == ["answered"] * 8
    assert len(storage.list("elsewhere")) == 1


def test_a_storage_that_fails_ends_the_batch_with_its_own_error(monkeypatch: pytest.MonkeyPatch, storage: Storage) -> None:
    class Full(Storage):
        def write_bytes(self, key: str, data: bytes) -> str:
            raise StorageError(f"cannot write {key}: No space left on device")

    monkeypatch.setattr(PlayingRunner, "seconds", 0.01)
    with pytest.raises(StorageError, match="No space left on device"):
        asyncio.run(PlayingRunner(plan(Full(storage.settings))).run(batch(100)))


@pytest.mark.process
def test_requests_of_a_round_of_32_trajectories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_server(tmp_path) as variables, Proxy(variables["AWS_ENDPOINT_URL"]) as proxy:
        for name, value in (variables | {"AWS_ENDPOINT_URL": proxy.url}).items():
            monkeypatch.setenv(name, value)
        storage = Storage(StorageSettings(root="s3://bucket/x"))
        runner = PlayingRunner(plan(storage))

        class Pool:
            async def run(self, rows: Any, engines: Any, asked: RoundPlan, *rest: Any) -> pa.Table:
                return await runner.run(batch(32, *asked.earlier))

        made = services(tmp_path)
        made.storage, made.runners = storage, Pool()  # type: ignore[assignment]
        asyncio.run(
            roll_out(made, "rollout", rows(32), LAYOUT, "0", RoundPlan(LAYOUT.chunks(""), (), Sampling(), EngineSettings()))
        )
        assert len(proxy.asked) <= 8  # one for four trajectories
        assert len([key for key in storage.list("") if key != LAYOUT.trajectories]) <= 2  # chunks
