"""The pool of runners when its actors die: a fault of the infrastructure, never a score."""

import asyncio
import os
import signal
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
from nbrl.infra.node_cache import PlacedFolder
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.errors import RolloutError
from nbrl.tasks.rollout import pool, supervisor
from nbrl.tasks.rollout.episodes import failed
from nbrl.tasks.rollout.plan import EngineAddress, EnvironmentPlan, RoundPlan, RunnerPlan
from nbrl.tasks.rollout.pool import RunnerPool
from nbrl.tasks.rollout.pooled_runner import PooledRunner
from nbrl.tasks.rollout.runner import LiveRunner
from nbrl.tasks.rollout.samplers import EngineSamplers
from nbrl.tasks.runs.recipes import load

pytestmark = pytest.mark.more


def make_pool(folder: Path, monkeypatch: pytest.MonkeyPatch, runner: type, runners: int = 1) -> RunnerPool:
    monkeypatch.setattr(pool, "PooledRunner", runner)
    config = load("tiny-cpu", [f"rollout.runners={runners}"])
    storage = Storage(StorageSettings(root=str(folder)))
    environments = {"e": EnvironmentPlan()}
    model = PlacedFolder(config.policy.path)
    plan = RunnerPlan(model, environments, "attached", storage, config.agent, config.sandbox, config.rollout, Home())
    return RunnerPool(plan)


def silent(*heard: object) -> None: ...


ENGINES = [EngineAddress("url")]
SILENT = "runner 0 gives no sign; others run what it had not finished"
SAME = {"group": "g", "question": "q", "ability": "qa", "environment": "e", "files": [], "collect": [], "answers": []}


def other_than_silence(said: list[str]) -> list[str]:
    """On a busy machine, Ray may take longer to start a runner again than one may be silent."""
    return [sentence for sentence in said if sentence != SILENT]


async def run_rows(runners: RunnerPool, count: int, say: Callable[[str], None] = silent) -> pa.Table:
    await runners.start(silent)
    try:
        rows = [{"id": str(n), "sample": n, "seed": n} | SAME for n in range(count)]
        plan = RoundPlan("f", (), Sampling(), EngineSettings())
        return await runners.run(rows, lambda: ENGINES, plan, silent, silent, say)
    finally:
        await runners.stop()


class Playing(PooledRunner):
    """A runner whose trajectories `_play` makes, in every life, of which it notes each in `lives` below the plan's storage."""

    def __init__(self, plan: Any, number: int, queue: Any) -> None:
        super().__init__(plan, number, queue)
        lives = Path(plan.storage.settings.root, "lives")
        lives.mkdir(exist_ok=True)
        (lives / self._life).touch()
        self._count = len(list(lives.iterdir()))

    async def start(self) -> None:
        nobody: Any = None
        self._live = LiveRunner(nobody, EngineSamplers(self._plan), AsyncExitStack())

    async def _attempts(self, task: Any, hidden: Any, new: Any, plan: Any) -> Trajectory:
        await self._play(task.id)
        return failed(task, f"life {self._count}").model_copy(update={"status": Status.ANSWERED})

    async def _play(self, identity: str) -> None:
        raise NotImplementedError


def test_a_runner_that_died_twice_ends_its_work_and_one_line_tells_of_each_time(
    cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class DyingTwice(Playing):
        async def _play(self, identity: str) -> None:
            if self._count < 3:
                os._exit(1)

    said: list[str] = []
    index = asyncio.run(run_rows(make_pool(tmp_path, monkeypatch, DyingTwice), 1, said.append))
    assert index["failure"].to_pylist() == ["life 3"]
    assert other_than_silence(said) == ["a runner ended and was started again; its finished trajectories are kept"] * 2


def test_runners_that_end_too_often_end_the_rollout(cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Dying(Playing):
        async def _play(self, identity: str) -> None:
            os._exit(1)

    monkeypatch.setattr(supervisor, "RESTARTS", 1)
    with pytest.raises(RolloutError, match="runners ended more often than 1 restarts in 10 minutes"):
        asyncio.run(run_rows(make_pool(tmp_path, monkeypatch, Dying), 1))


def test_others_finish_what_a_silent_runner_holds(cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    played = tmp_path / "played"

    class Leaving(Playing):
        async def _play(self, identity: str) -> None:
            await asyncio.sleep(0.2)
            if self._number == 0:
                os.kill(os.getpid(), signal.SIGSTOP)  # as on a machine that falls silent
            with played.open("a") as file:
                file.write(f"{identity}\n")

    said: list[str] = []
    index = asyncio.run(run_rows(make_pool(tmp_path, monkeypatch, Leaving, runners=2), 12, said.append))
    assert index["id"].to_pylist() == [str(number) for number in range(12)]
    assert set(played.read_text().split()) == set(index["id"].to_pylist())
    assert SILENT in said


def test_an_error_of_a_runner_arrives_in_its_own_words(
    cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class Failing(Playing):
        async def _play(self, identity: str) -> None:
            raise StorageError("cannot write s3://b/k: no space is left")

    with pytest.raises(StorageError, match=r"^cannot write s3://b/k: no space is left$"):
        asyncio.run(run_rows(make_pool(tmp_path, monkeypatch, Failing), 1))
    told = capfd.readouterr()
    assert "Traceback" not in told.out + told.err


def test_a_killed_runner_keeps_what_it_finished(cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is killed as soon as its first chunk is on storage, while other trajectories are under way."""
    dead, played = tmp_path / "dead", tmp_path / "played"

    class Dying(Playing):
        async def _play(self, identity: str) -> None:
            while int(identity) >= 5 and not dead.exists():
                await asyncio.sleep(0.05)
                if len(self._plan.storage.list("f")) > 1:
                    dead.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
            with played.open("a") as file:
                file.write(f"{identity}\n")

    said: list[str] = []
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "half.parquet").write_bytes(b"PAR1")
    index = asyncio.run(run_rows(make_pool(tmp_path, monkeypatch, Dying), 10, said.append))
    assert dead.exists()
    assert index["status"].to_pylist() == ["answered"] * 10
    assert sorted(played.read_text().split()) == sorted(str(n) for n in range(10))
    assert other_than_silence(said) == [
        "a runner ended and was started again; its finished trajectories are kept",
        f"{tmp_path / 'f' / 'half.parquet'} is damaged: its trajectories were run again",
    ]


def test_a_runner_that_cannot_start_says_why_in_its_own_words(
    cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing(PooledRunner):
        async def start(self) -> None:
            raise AgentError("no question has room")

    async def work() -> None:
        await make_pool(tmp_path, monkeypatch, Refusing).start(silent)

    with pytest.raises(AgentError, match=r"^no question has room$"):
        asyncio.run(work())


def test_what_a_runner_does_while_it_starts_is_told(cluster: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Playing):
        """It starts once it was asked what it does."""

        def __init__(self, plan: Any, number: int, queue: Any) -> None:
            super().__init__(plan, number, queue)
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
