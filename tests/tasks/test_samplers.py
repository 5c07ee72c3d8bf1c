"""Where the actions of a runner's episodes come from."""

import asyncio
from contextlib import ExitStack
from pathlib import Path

import pytest

from nbrl.agent.messages import Message, Prompt
from nbrl.agent.policy import Sampling
from nbrl.infra.engine.settings import EngineSettings
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.rollout import pool
from nbrl.tasks.rollout.plan import EngineAddress, RolloutBatch, RoundPlan
from nbrl.tasks.rollout.samplers import EngineSamplers
from tests.chat_server import Reply, Server, serving
from tests.tasks.test_runner import batch, plan

PROMPT = Prompt([[5, 6, 7]], [Message("user", "hi")])
META = {"finish_reason": {"type": "stop"}, "weight_version": "7", "output_token_logprobs": [[-0.5, 11, None]]}
EPISODES = 5


def test_one_runner_uses_all_engines_and_an_episode_stays_with_its_own(tmp_path: Path) -> None:
    samplers = EngineSamplers(plan(Storage(StorageSettings(root=str(tmp_path)))))

    async def run(servers: list[Server]) -> None:
        engines = [EngineAddress(server.url, "policy" if number else None, "k") for number, server in enumerate(servers)]
        async with samplers.opened(RolloutBatch([], engines, batch(0).round)) as new:
            for _ in range(EPISODES):
                sampler = new()
                for seed in range(2):  # two actions of an episode
                    await sampler.policy.generate(PROMPT, 8, seed)

    with ExitStack() as stack:
        servers = [stack.enter_context(serving(Reply({"meta_info": META}))) for _ in range(2)]
        asyncio.run(run(servers))
    assert [len(server.bodies) for server in servers] == [6, 4]
    assert [{body.get("lora_path") for body in server.bodies} for server in servers] == [{None}, {"policy"}]
    assert {head["Authorization"] for server in servers for head in server.heads} == {"Bearer k"}


def test_runners_begin_with_different_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[list[str]] = []

    class Remote:
        def remote(self, work: RolloutBatch) -> int:
            given.append([engine.url for engine in work.engines])
            return 0

    class Actor:
        run = Remote()

    monkeypatch.setattr(pool.ray, "get", lambda reference: reference)
    engines = [EngineAddress(name) for name in "abc"]
    for number in range(4):
        rows = pool.pa.table({"id": ["x"], "runner": [number]})
        pool.run_on_runner(rows, [Actor()] * 4, engines, RoundPlan("folder", (), Sampling(), EngineSettings()))
    assert given == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"], ["a", "b", "c"]]
