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
from nbrl.infra.node_cache import PlacedFolder
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.layout.stages import RoundLayout
from nbrl.tasks.nodes.rollout import roll_out
from nbrl.tasks.rollout.episodes import failed
from nbrl.tasks.rollout.plan import EnvironmentPlan, RoundPlan, RunnerPlan
from nbrl.tasks.rollout.runner import LiveRunner, Runner
from nbrl.tasks.rollout.samplers import EngineSamplers
from nbrl.tasks.rollout.work_queue import WorkQueue
from nbrl.tasks.runs.recipes import load
from tests.clouds import Proxy, s3_server
from tests.tasks.nodes.doubles import services
from tests.tasks.queues import index_by, played_by

LAYOUT = RoundLayout("runs/r/iterations/000000/round-0")


class PlayingRunner(Runner):
    """Plays each trajectory in `seconds` and counts how often; those named in `fails` fail."""

    seconds, fails = 0.0, frozenset[str]()

    def __init__(self, plan: RunnerPlan) -> None:
        self.queue = WorkQueue()
        super().__init__(plan, 0, self.queue)
        self.played: list[str] = []

    async def start(self) -> None:
        nobody: Any = None
        self._live = LiveRunner(nobody, EngineSamplers(self._plan), AsyncExitStack())

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


ROUND = RoundPlan(LAYOUT.chunks(""), (), Sampling(), EngineSettings())


def play(storage: Storage, runner: PlayingRunner, asked: list[dict[str, Any]]) -> pa.Table:
    return asyncio.run(played_by(storage, runner, runner.queue, asked, ROUND))


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(StorageSettings(root=str(tmp_path / "storage")))


def test_all_of_a_round_comes_back_in_its_order_and_is_on_storage(storage: Storage) -> None:
    table = play(storage, PlayingRunner(plan(storage)), rows(32))
    assert table["id"].to_pylist() == [str(n) for n in range(32)]
    stored = [row for key in storage.list(LAYOUT.all_chunks) for row in storage.read_table(key)["id"].to_pylist()]
    assert sorted(stored, key=int) == table["id"].to_pylist()


def test_what_failed_is_there_too_but_is_not_found_again(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlayingRunner, "fails", frozenset({"3"}))
    runner = PlayingRunner(plan(storage))
    table = play(storage, runner, rows(6))
    assert from_table(table)[3].status is Status.FAILED
    keys = storage.list(LAYOUT.all_chunks)
    index, damaged = asyncio.run(runner.find(keys, [str(n) for n in range(8)]))
    assert sorted(index["id"].to_pylist()) == ["0", "1", "2", "4", "5"]
    assert not damaged


def test_no_more_episodes_run_at_once_than_there_are_slots(storage: Storage) -> None:
    class Counting(PlayingRunner):
        now = most = 0

        async def _attempts(self, task: Task, files: Any, new: Any, plan: RoundPlan) -> Trajectory:
            self.now += 1
            self.most = max(self.most, self.now)
            await asyncio.sleep(0.01)
            self.now -= 1
            return await super()._attempts(task, files, new, plan)

    runner = Counting(plan(storage, episodes=3))
    play(storage, runner, rows(20))
    assert runner.most == 3
    assert sorted(runner.played, key=int) == [str(n) for n in range(20)]


def test_a_storage_that_fails_ends_the_round_with_its_own_error(monkeypatch: pytest.MonkeyPatch, storage: Storage) -> None:
    class Full(Storage):
        def write_bytes(self, key: str, data: bytes) -> str:
            raise StorageError(f"cannot write {key}: No space left on device")

    monkeypatch.setattr(PlayingRunner, "seconds", 0.01)
    with pytest.raises(StorageError, match="No space left on device"):
        play(storage, PlayingRunner(plan(Full(storage.settings))), rows(100))


def test_a_row_that_does_not_count_and_is_given_again_before_its_runner_hears_of_it_is_run_again(storage: Storage) -> None:
    class TimingOut(PlayingRunner):
        async def _attempts(self, task: Task, files: Any, new: Any, plan: RoundPlan) -> Trajectory:
            trajectory = await super()._attempts(task, files, new, plan)
            return trajectory.model_copy(update={"status": Status.TIMEOUT}) if task.id == "1" else trajectory

    runner = TimingOut(plan(storage, episodes=4))
    queue, lost, finish_truly = runner.queue, False, runner.queue.finish

    async def finish(name: str, number: int, life: str, index: pa.Table) -> set[str]:
        nonlocal lost
        if lost:
            return await finish_truly(name, number, life, index)
        lost = True
        queue._round.held[0].discard("1")  # the runner gave no sign for long
        passed_over = await finish_truly(name, number, life, index)
        queue._round.waiting.append("1")
        queue._change()
        await asyncio.sleep(0.5)  # meanwhile the runner gets it once more
        return passed_over

    runner.queue.finish = finish
    table = asyncio.run(asyncio.wait_for(played_by(storage, runner, runner.queue, rows(3), ROUND), 60))
    assert table["id"].to_pylist() == list("012")
    assert runner.played.count("1") == 2


@pytest.mark.process
def test_requests_of_a_round_of_32_trajectories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_server(tmp_path) as variables, Proxy(variables["AWS_ENDPOINT_URL"]) as proxy:
        for name, value in (variables | {"AWS_ENDPOINT_URL": proxy.url}).items():
            monkeypatch.setenv(name, value)
        storage = Storage(StorageSettings(root="s3://bucket/x"))
        runner = PlayingRunner(plan(storage))

        class Pool:
            async def run(self, given: Any, engines: Any, asked: RoundPlan, *rest: Any) -> pa.Table:
                return await index_by(runner, runner.queue, rows(32), asked)

        made = services(tmp_path)
        made.storage, made.runners = storage, Pool()  # type: ignore[assignment]
        asyncio.run(
            roll_out(
                made,
                "rollout",
                rows(32),
                LAYOUT.trajectories,
                "0",
                RoundPlan(LAYOUT.chunks(""), (), Sampling(), EngineSettings()),
            )
        )
        assert len(proxy.asked) <= 8  # one for four trajectories
        assert len([key for key in storage.list("") if key != LAYOUT.trajectories]) <= 2  # chunks
