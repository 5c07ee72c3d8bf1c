"""Environments behind servers of OpenEnv: games, shells, simulators that others made."""

import json
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from nbrl.agent.errors import AgentError
from nbrl.agent.text import check_address
from nbrl.agent.tools.sessions import Asked, GuardedSession, check_names
from nbrl.agent.tools.settings import BUILT_IN
from nbrl.infra.closed import FREE
from nbrl.tasks.environments.environment import Environment, Tables, finished
from nbrl.tasks.environments.openenv.connection import CALL_S, page
from nbrl.tasks.environments.openenv.server import PORT
from nbrl.tasks.environments.openenv.session import OpenEnvSource
from nbrl.tasks.environments.questions import check, table_of
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.reward.rules.rule import OUTCOME

TEXT_CHARS = 4_000
MOST = 100_000


class OpenEnvEnvironment(Environment):
    """An environment that a server of OpenEnv gives. Each trajectory is an episode of its own, each question a seed."""

    kind: Literal["openenv"] = Field(description="an environment behind a server that speaks OpenEnv's protocol")
    url: str = Field("", description="address of a server, as http://host:port", json_schema_extra=FREE)
    command: tuple[str, ...] = Field(
        (),
        description="instead of url: program and arguments that start a server on this machine, one for each runner; {port} is "
        "the port on which it must listen",
        json_schema_extra=FREE,
    )
    text: str = Field("", max_length=20_000, description="the task in words; when not set, the server's description of itself")
    full_reward: float = Field(
        1.0,
        gt=0,
        le=1e6,
        allow_inf_nan=False,
        description="sum of an episode's rewards that is a success; rewards are paid as shares of it",
    )
    show_reward: bool = Field(False, description="whether cells read the reward of each action")
    show_state: bool = Field(
        False, description="whether there is a tool that shows the environment's state, which may hold its solution"
    )
    replayable: bool = Field(
        False, description="whether the same seed and actions give the same answers and rewards, which the audit then checks"
    )
    seed: int = Field(
        0, ge=0, le=1_000_000_000, description="the first seed to train on; the first one to evaluate on is 100 000 above it"
    )
    train: int = Field(1024, ge=0, le=MOST, description="seeds to train on")
    held_out: int = Field(64, ge=1, le=MOST, description="seeds to evaluate on")

    @field_validator("url")
    @classmethod
    def _address(cls, url: str) -> str:
        if url:
            check_address(url)
        return url

    @model_validator(mode="after")
    def _one_way(self) -> "OpenEnvEnvironment":
        if bool(self.url) == bool(self.command):
            raise ValueError("an environment of the kind openenv has either a url or a command")
        if self.command and not any(PORT in word for word in self.command):
            raise ValueError(f"command must say where the server listens: write {PORT} for the port")
        return self

    def load(self, key: str) -> Tables:
        """Return the seeds as questions, once an episode has begun and its tools are known to be usable."""
        try:
            text = finished(self._tried(key))
        except AgentError as error:
            raise ConfigError(f"{key}: {str(error).removeprefix(f'{key}: ')}") from error
        train, held_out = [table_of(self._rows(text, first, count)) for first, count in self._seeds()]
        check(train, f"{key}, train")
        check(held_out, f"{key}, held_out")
        return Tables(train, held_out)

    def session_source(self) -> OpenEnvSource:
        taken = (*BUILT_IN, *(self.tools or ()))
        return OpenEnvSource(self.url, self.command, self.full_reward, self.show_reward, self.show_state, self.replayable, taken)

    def _seeds(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Return the first seed and the number of seeds of both splits."""
        return (self.seed, self.train), (self.seed + MOST, self.held_out)

    def _rows(self, text: str, first: int, count: int) -> Iterator[dict[str, Any]]:
        for number in range(first, first + count):
            yield {
                "id": f"seed-{number:06d}",
                "question": text,
                "answers": [],
                "ability": "openenv",
                "source": "openenv",
                "rule": OUTCOME,
                "reference": json.dumps({"seed": number}),
            }

    async def _tried(self, key: str) -> str:
        """Return the task in words, once an episode could begin. Raises SessionError, or ConfigError without words."""
        sessions = await self.session_source().open()
        try:
            asked = Asked("", "", "openenv", key, json.dumps({"seed": self.seed}))
            session = await GuardedSession.start(sessions, asked, 0, CALL_S)
            try:
                check_names(key, [], session.tools)
                await session.observe()
            finally:
                await session.close()
            return self.text or await self._described(key, await sessions.address())
        finally:
            await sessions.close()

    async def _described(self, key: str, address: str) -> str:
        words = (await page(address, "/metadata")).get("description")
        if not isinstance(words, str) or not words.strip():
            raise ConfigError(f"{key}: its server does not say what its task is; set {key}.text")
        return words.strip()[:TEXT_CHARS]
