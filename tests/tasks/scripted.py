"""A real runner with real kernels whose policy plays written cells."""

import asyncio
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nbrl.agent.policies.recorded import ScriptedPolicy
from nbrl.agent.policy import Sampling
from nbrl.agent.tokens.tokenizer import ChatTokenizer
from nbrl.infra.engine.settings import EngineSettings
from nbrl.infra.home import Home
from nbrl.infra.node_cache import PlacedFolder
from nbrl.infra.storage import Storage
from nbrl.tasks.layout.runs import DataLayout
from nbrl.tasks.rollout import samplers
from nbrl.tasks.rollout.plan import EnvironmentPlan, RoundPlan, RunnerPlan
from nbrl.tasks.rollout.runner import Runner
from nbrl.tasks.rollout.work_queue import WorkQueue
from nbrl.tasks.runs.config import RunConfig
from tests.tasks.queues import played_by


def play(
    monkeypatch: pytest.MonkeyPatch,
    config: RunConfig,
    storage: Storage,
    layout: DataLayout,
    environments: Mapping[str, EnvironmentPlan],
    rows: Sequence[dict[str, Any]],
    cells: Sequence[Sequence[str]],
    trained: float | None = None,
    max_steps: int | None = None,
) -> pa.Table:
    """The trajectories of the rows; each plays the cells at its place."""
    tokenizer = ChatTokenizer.load(config.policy.path, config.agent)
    scripts = iter(cells)

    class Scripted(ScriptedPolicy):
        interrupted = False

        def __init__(self, *_: Any, **__: Any) -> None:
            super().__init__([f"<think>I do as I am told</think><code>{code}</code>" for code in next(scripts)], tokenizer)

        async def serves(self) -> bool:
            return True

    monkeypatch.setattr(samplers, "SglangPolicy", Scripted)
    home = Home(str(Path(storage.settings.root).with_name("home")))
    attached = layout.attached_folder
    model = PlacedFolder(config.policy.path)
    plan = RunnerPlan(model, environments, attached, storage, config.agent, config.sandbox, config.rollout, home)

    async def work() -> pa.Table:
        queue = WorkQueue()
        runner = Runner(plan, 0, queue)
        try:
            asked = RoundPlan(f"chunks-{uuid.uuid4().hex}", (), Sampling(), EngineSettings(), trained, max_steps=max_steps)
            return await played_by(storage, runner, queue, rows, asked)
        finally:
            await runner.stop()

    return asyncio.run(work())
