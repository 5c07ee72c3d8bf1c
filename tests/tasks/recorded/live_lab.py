"""A real server of live sessions; the engine is a double that samples what the test says."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp

from nbrl.agent.recorder.recorder import Recorder
from nbrl.agent.settings import AgentSettings
from nbrl.agent.tokens.conversation import Conversations
from nbrl.agent.trajectory import Trajectory
from nbrl.infra.errors import StorageError
from nbrl.infra.process.child import free_port
from nbrl.tasks.recorded.live import LiveSessions
from nbrl.tasks.recorded.server import LiveDoor, LiveServer
from tests.agent.test_recorder import Engine

KEY = "a-key"
SETTINGS = AgentSettings(max_steps=3, context_tokens=4000, action_tokens=20, observation_chars=64)
Ask = Callable[..., Awaitable[tuple[int, dict[str, Any]]]]


class Lab:
    """A server with sessions whose trajectories are kept in a list, with the number of their oldest weights."""

    def __init__(self, conversations: Conversations, sample: Callable[[int, list[int]], list[int]] | None = None) -> None:
        self.ids = [*conversations.encode("yes"), conversations.tokenizer.end_id]
        self.engine = Engine(sample or (lambda number, prompt: self.ids))
        self.engine.version = "7"
        self.kept: list[tuple[int, Trajectory]] = []
        self.fails: list[Exception] = []
        self.delay_s, self.port = 0.0, 0
        self.questions: list[tuple[str, list[str]]] | None = None
        self.sessions = LiveSessions(lambda name: Recorder(conversations, self.engine, SETTINGS, 0), self._store)

    def keep_questions(self, faults: int = 1) -> None:
        """Let the server keep questions, the first of which cannot be written at first."""
        left = [StorageError("the disk is full")] * faults

        def keep(question: str, right: list[str]) -> None:
            if left:
                raise left.pop()
            self.questions = [*(self.questions or ()), (question, right)]

        self.sessions = LiveSessions(self.sessions._recorder, self._store, keep)

    async def _store(self, oldest: int, session: Trajectory) -> dict[str, Any]:
        await asyncio.sleep(self.delay_s)
        if self.fails:
            raise self.fails.pop()
        self.kept.append((oldest, session))
        return {"weights": oldest}

    def run(self, test: Callable[[Ask], Awaitable[None]]) -> None:
        async def served() -> None:
            port = self.port = free_port()
            server = LiveServer(self.sessions, "policy", LiveDoor("127.0.0.1", port, KEY, ""))
            async with server.listening(), aiohttp.ClientSession(f"http://127.0.0.1:{port}", trust_env=False) as client:

                async def ask(path: str, body: Any = None, key: str = KEY, **headers: str) -> tuple[int, dict[str, Any]]:
                    sent = {"Authorization": f"Bearer {key}", **headers}
                    how = {"json": body} if isinstance(body, dict) else {"data": body}
                    async with client.request("GET" if body is None else "POST", path, headers=sent, **how) as answer:
                        return answer.status, await answer.json()

                await test(ask)

        asyncio.run(asyncio.wait_for(served(), 60))


def says(*texts: str) -> dict[str, Any]:
    turns = [{"role": "assistant" if number % 2 else "user", "content": text} for number, text in enumerate(texts)]
    return {"messages": turns}


def code_of(answer: tuple[int, dict[str, Any]]) -> tuple[int, str]:
    return answer[0], str(answer[1]["error"]["code"])
