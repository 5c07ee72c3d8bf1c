"""The pool of runners when its actors die: a fault of the infrastructure, never a score."""

import asyncio
import os
import signal
import uuid
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nbrl.agent.errors import AgentError
from nbrl.agent.policy import Sampling
from nbrl.agent.trajectory import Status, Trajectory
from nbrl.infra.engine.settings import EngineSettings
from nbrl.infra.errors import StorageError
from nbrl.infra.home import Home
from nbrl.infra.placed_folder import PlacedFolder
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.errors import RolloutError
from nbrl.tasks.rollout import pool
from nbrl.tasks.rollout.episodes import failed
from nbrl.tasks.rollout.plan import EngineAddress, EnvironmentPlan, RoundPlan, RunnerPlan
from nbrl.tasks.rollout.pool import RunnerPool
from nbrl.tasks.rollout.runner import Live, Runner
from nbrl.tasks.rollout.samplers import EngineSamplers
from nbrl.tasks.runs.recipes import load


def make_pool(folder: Path, monkeypatch: pytest.MonkeyPatch, runner: type) -> RunnerPool:
    monkeypatch.setattr(pool, "Runner", runner)
    config = load("tiny-cpu")
    storage = Storage(StorageSettings(root=str(folder)))
    environments = {"e": EnvironmentPlan()}
    model = PlacedFolder(config.policy.path)
    plan = RunnerPlan(model, environments, "attached", storage, config.agent, config.sandbox, config.rollout, Home())
    return RunnerPool(plan)


def silent(*heard: object) -> None: ...


async def run_one(runners: RunnerPool, say: Callable[[str], None] = silent) -> pa.Table:
    await runners.start(silent)
    try:
        rows = [{"id": "a"}]
        return await runners.run(
            rows, [EngineAddress("url")], RoundPlan("folder", (), Sampling(), EngineSettings()), silent, silent, say
        )
    finally:
        await runners.stop()


class Playing:
    """A runner that plays `_play` in every life, of which it notes each in `lives` below the plan's storage."""

    def __init__(self, plan: Any) -> None:
        self._life, self._folder = uuid.uuid4().hex, Path(plan.storage.settings.root, "lives")

    async def start(self) -> None:
        self._folder.mkdir(exist_ok=True)
        (self._folder / self._life).touch()

    async def stop(self) -> None: ...

    async def said(self) -> list[str]:
        return []

    async def finished(self) -> tuple[str, int]:
        return self._life, 0

    async def damaged(self) -> list[str]:
        return []

    async def run(self, batch: Any) -> pa.Table:
        await self.start()
        return await self._play(len(list(self._folder.iterdir())))

    async def _play(self, life: int) -> pa.Table:
        raise NotImplementedError


def test_a_runner_that_ends_at_once_whenever_it_is_called_ends_the_rollout(
    cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Dying(Playing):
        async def _play(self, life: int) -> pa.Table:
            os._exit(1)

    monkeypatch.setattr(pool, "RETRIES", 1)
    with pytest.raises(RolloutError, match="the runners failed beyond their retry budget"):
        asyncio.run(run_one(make_pool(tmp_path, monkeypatch, Dying)))


def test_a_runner_that_died_twice_ends_its_work_and_one_line_tells_of_each_time(
    cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class DyingTwice(Playing):
        async def _play(self, life: int) -> pa.Table:
            await asyncio.sleep(1.0)
            if life < 3:
                os._exit(1)
            return pa.table({"life": [life]})

    said: list[str] = []
    assert asyncio.run(run_one(make_pool(tmp_path, monkeypatch, DyingTwice), said.append))["life"].to_pylist() == [3]
    assert said == ["a runner ended and was started again; its finished trajectories are kept"] * 2


def test_runners_that_end_too_often_end_the_rollout(cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Dying(Playing):
        async def _play(self, life: int) -> pa.Table:
            await asyncio.sleep(1.0)
            os._exit(1)

    monkeypatch.setattr(pool, "RESTARTS", 1)
    with pytest.raises(RolloutError, match="runners ended more often than 1 restarts in 10 minutes"):
        asyncio.run(run_one(make_pool(tmp_path, monkeypatch, Dying)))


def test_an_error_of_a_runner_arrives_in_its_own_words(
    cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class Failing(Playing):
        async def _play(self, life: int) -> pa.Table:
            raise StorageError("cannot write s3://b/k: no space is left")

    with pytest.raises(StorageError, match=r"^cannot write s3://b/k: no space is left$"):
        asyncio.run(run_one(make_pool(tmp_path, monkeypatch, Failing)))
    told = capfd.readouterr()
    assert "Traceback" not in told.out + told.err


def test_a_killed_runner_keeps_what_it_finished(cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is killed as soon as its first chunk is on storage, while other trajectories are under way."""
    dead, played = tmp_path / "dead", tmp_path / "played"

    class Dying(Runner):
        async def start(self) -> None:
            nobody: Any = None
            self._live = Live(nobody, EngineSamplers(self._plan), AsyncExitStack())

        async def _attempts(self, task: Any, hidden: Any, new: Any, plan: Any) -> Trajectory:
            while int(task.id) >= 5 and not dead.exists():
                await asyncio.sleep(0.05)
                if len(self._plan.storage.list(plan.unfinished)) > 1:
                    dead.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
            with played.open("a") as file:
                file.write(f"{task.id}\n")
            return failed(task, "").model_copy(update={"status": Status.ANSWERED})

    async def work() -> pa.Table:
        runners = make_pool(tmp_path, monkeypatch, Dying)
        await runners.start(silent)
        try:
            engines, sampling = [EngineAddress("url")], Sampling()
            return await runners.run(rows, engines, RoundPlan("f", (), sampling, EngineSettings()), silent, silent, said.append)
        finally:
            await runners.stop()

    said: list[str] = []
    same = {"group": "g", "question": "q", "ability": "qa", "environment": "e", "files": [], "collect": [], "answers": []}
    rows = [{"id": str(n), "sample": n, "seed": n} | same for n in range(10)]
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "half.parquet").write_bytes(b"PAR1")
    table = asyncio.run(work())
    assert dead.exists()
    assert table["status"].to_pylist() == ["answered"] * 10
    assert sorted(played.read_text().split()) == sorted(str(n) for n in range(10))
    assert said.pop() == f"{tmp_path / 'f' / 'half.parquet'} is damaged: its trajectories were run again"
    assert set(said) <= {"a runner ended and was started again; its finished trajectories are kept"}  # if it was seen in time


def test_a_runner_that_cannot_start_says_why_in_its_own_words(
    cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing:
        def __init__(self, plan: Any) -> None: ...

        async def start(self) -> None:
            raise AgentError("no question has room")

        async def said(self) -> list[str]:
            return []

    async def work() -> None:
        await make_pool(tmp_path, monkeypatch, Refusing).start(silent)

    with pytest.raises(AgentError, match=r"^no question has room$"):
        asyncio.run(work())


def test_what_a_runner_does_while_it_starts_is_told(cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Playing):
        """It starts once it was asked what it does."""

        def __init__(self, plan: Any) -> None:
            super().__init__(plan)
            self._asked = asyncio.Event()

        async def start(self) -> None:
            await self._asked.wait()

        async def said(self) -> list[str]:
            self._asked.set()
            return ["indexing 3 passages"]

    async def work() -> None:
        runners = make_pool(tmp_path, monkeypatch, Slow)
        await runners.start(heard.append)
        await runners.stop()

    heard: list[str] = []
    asyncio.run(work())
    assert heard == ["indexing 3 passages"]
