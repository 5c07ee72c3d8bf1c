"""Where the actions of a runner's episodes come from."""

import asyncio
import socket
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

from nbrl.agent.messages import Message, Prompt
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.rollout.plan import EngineAddress
from nbrl.tasks.rollout.samplers import Engines, EngineSamplers, turn_of
from tests.chat_server import Reply, serving
from tests.tasks.test_runner import ROUND, plan

PROMPT = Prompt([[5, 6, 7]], [Message("user", "hi")])
META = {"finish_reason": {"type": "stop"}, "weight_version": "7", "output_token_logprobs": [[-0.5, 11, None]]}
EPISODES = 5


def plays(samplers: EngineSamplers, engines: Engines, episodes: int) -> None:
    async def run() -> None:
        async with samplers.opened(ROUND, engines) as new:
            for _ in range(episodes):
                sampler = new()
                for seed in range(2):  # two actions of an episode
                    await sampler.policy.generate(PROMPT, 8, seed)

    asyncio.run(run())


def test_one_runner_uses_all_engines_and_an_episode_stays_with_its_own(tmp_path: Path) -> None:
    samplers = EngineSamplers(plan(Storage(StorageSettings(root=str(tmp_path)))))
    with ExitStack() as stack:
        servers = [stack.enter_context(serving(Reply({"meta_info": META}))) for _ in range(2)]
        engines = [EngineAddress(server.url, "policy" if number else None, "k") for number, server in enumerate(servers)]
        plays(samplers, Engines(engines), EPISODES)
    assert [len(server.bodies) for server in servers] == [6, 4]
    assert [{body.get("lora_path") for body in server.bodies} for server in servers] == [{None}, {"policy"}]
    assert {head["Authorization"] for server in servers for head in server.heads} == {"Bearer k"}


def test_runners_begin_with_different_engines(tmp_path: Path) -> None:
    samplers = EngineSamplers(plan(Storage(StorageSettings(root=str(tmp_path)))))
    with ExitStack() as stack:
        servers = [stack.enter_context(serving(Reply({"meta_info": META}))) for _ in range(2)]
        plays(samplers, Engines([EngineAddress(server.url) for server in servers], first=3), 1)
    assert [len(server.bodies) for server in servers] == [0, 2]


class Known:
    """An engine of which it is known whether it answered last."""

    def __init__(self, reached: bool) -> None:
        self.reached = reached


@pytest.mark.parametrize(
    ("reached", "turns"),
    [
        ([True, True, True], [0, 1, 2, 0, 1]),
        ([True, False, True], [0, 2, 0, 2, 0]),
        ([False, False, True], [2, 2, 2, 2, 2]),
        ([False, False], [1, 1, 1, 1, 1]),
    ],
)
def test_episodes_begin_on_engines_that_answer(reached: list[bool], turns: list[int]) -> None:
    numbers = count()
    assert [turn_of(numbers, [Known(each) for each in reached]) for _ in range(5)] == turns


def test_an_episode_follows_its_engine_to_another_address(tmp_path: Path) -> None:
    samplers = EngineSamplers(plan(Storage(StorageSettings(root=str(tmp_path)))))

    async def run(engines: Engines, new_place: str) -> None:
        async with samplers.opened(ROUND, engines) as new:
            waiting = asyncio.create_task(new().policy.generate(PROMPT, 8, 0))
            await asyncio.sleep(0.2)
            engines.now = [EngineAddress(new_place)]
            await waiting

    with serving(Reply({"meta_info": META})) as server:
        asyncio.run(run(Engines([EngineAddress(f"http://127.0.0.1:{unused_port()}")]), server.url))
        assert len(server.bodies) == 1


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
