"""The pool of runners when its actors die: a fault of the infrastructure, never a score."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nbrl.agent.errors import AgentError
from nbrl.agent.policy import Sampling
from nbrl.agent.trajectory import Status, Trajectory
from nbrl.infra.engine.settings import EngineSettings
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.errors import RolloutError
from nbrl.tasks.rollout import pool
from nbrl.tasks.rollout.pool import RunnerPool
from nbrl.tasks.rollout.runner import Runner, RunnerPlan, failed
from nbrl.tasks.runs.recipes import load


def make_pool(folder: Path, monkeypatch: pytest.MonkeyPatch, runner: type, restarts: int = 0) -> RunnerPool:
    monkeypatch.setattr(pool, "Runner", runner)
    monkeypatch.setattr(pool, "RESTARTS", restarts)
    config = load("tiny-cpu")
    storage = Storage(StorageSettings(root=str(folder)))
    return RunnerPool(RunnerPlan(config.policy.path, "corpus", storage, config.agent, config.sandbox, config.rollout))


def test_a_runner_that_dies_beyond_its_restarts_ends_the_rollout(
    cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Dying:
        def __init__(self, plan: Any) -> None: ...

        async def start(self) -> None: ...

        async def stop(self) -> None: ...

        async def finished(self) -> int:
            return 0

        async def run(self, batch: Any) -> pa.Table:
            os._exit(1)

    async def work() -> None:
        runners = make_pool(tmp_path, monkeypatch, Dying)
        await runners.start()
        try:
            rows, silent = [{"id": "a"}], lambda *heard: None
            await runners.run(rows, [("url", None)], "folder", (), Sampling(), EngineSettings(), silent, silent, silent)
        finally:
            await runners.stop()

    with pytest.raises(RolloutError, match="the runners failed beyond their retry budget"):
        asyncio.run(work())


def test_a_killed_runner_keeps_what_it_finished(cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is killed as soon as its first chunk is on storage, while other trajectories are under way."""
    dead, played = tmp_path / "dead", tmp_path / "played"

    class Dying(Runner):
        async def start(self) -> None: ...

        async def _attempts(self, task: Any, session: Any, batch: Any) -> Trajectory:
            while int(task.id) >= 5 and not dead.exists():
                await asyncio.sleep(0.05)
                if len(self._plan.storage.list(batch.unfinished)) > 1:
                    dead.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
            with played.open("a") as file:
                file.write(f"{task.id}\n")
            return failed(task, "").model_copy(update={"status": Status.ANSWERED})

    async def work() -> pa.Table:
        runners = make_pool(tmp_path, monkeypatch, Dying, restarts=1)
        await runners.start()
        try:
            return await runners.run(rows, [("url", None)], "f", (), Sampling(), EngineSettings(), silent, silent, said.append)
        finally:
            await runners.stop()

    said: list[str] = []
    silent = lambda *heard: None  # noqa: E731
    rows = [{"id": str(n), "group": "g", "sample": n, "question": "q", "ability": "qa", "seed": n} for n in range(10)]
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "half.parquet").write_bytes(b"PAR1")
    table = asyncio.run(work())
    assert dead.exists()
    assert table["status"].to_pylist() == ["answered"] * 10
    assert sorted(played.read_text().split()) == sorted(str(n) for n in range(10))
    assert said == [f"{tmp_path / 'f' / 'half.parquet'} is damaged: its trajectories were run again"]


def test_a_runner_that_cannot_start_says_why_in_its_own_words(
    cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing:
        def __init__(self, plan: Any) -> None: ...

        async def start(self) -> None:
            raise AgentError("no question has room")

    async def work() -> None:
        await make_pool(tmp_path, monkeypatch, Refusing).start()

    with pytest.raises(AgentError, match=r"^no question has room$"):
        asyncio.run(work())
