"""The pool of runners when its actors die: a fault of the infrastructure, never a score."""

import asyncio
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nbrl.agent.errors import AgentError
from nbrl.agent.policy import Sampling
from nbrl.infra.engine.settings import EngineSettings
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.errors import RolloutError
from nbrl.tasks.layout import RoundLayout
from nbrl.tasks.rollout import pool
from nbrl.tasks.rollout.pool import RunnerPool
from nbrl.tasks.rollout.runner import RunnerPlan
from nbrl.tasks.runs.recipes import load


def make_pool(folder: Path, monkeypatch: pytest.MonkeyPatch, runner: type) -> RunnerPool:
    monkeypatch.setattr(pool, "Runner", runner)
    monkeypatch.setattr(pool, "RESTARTS", 0)
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
            rows, round_ = [{"id": "a"}], RoundLayout("folder")
            await runners.run(rows, [("url", None)], round_, Sampling(), EngineSettings(), lambda done: None, lambda: None)
        finally:
            await runners.stop()

    with pytest.raises(RolloutError, match="the runners failed beyond their retry budget"):
        asyncio.run(work())


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
