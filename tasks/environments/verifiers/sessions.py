"""The sessions of an environment of the kind verifiers: each trajectory has its task, its tools and its state in the program.

The program is one for all trajectories of a runner. Where it ends, the trajectories under way fail as by any fault of the
infrastructure, and the next one starts it again.
"""

import asyncio
import itertools
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from nbrl.agent.tools.base import Tool
from nbrl.agent.tools.mcp.tools import mcp_tools
from nbrl.agent.tools.sessions import Asked, EpisodeSession, Sessions
from nbrl.agent.trajectory import Step, Trajectory
from nbrl.infra.errors import InfraError
from nbrl.infra.parse import json_value
from nbrl.tasks.environments.verifiers.link import ProgramLink, ProgramOpening

START_S, END_S = 110.0, 20.0


@dataclass(frozen=True)
class VerifiersSource:
    """nbrl.agent.tools.sessions.SessionSource of a taskset. A call or a scoring may take `limit_s`."""

    opening: ProgramOpening
    success_from: float
    limit_s: float
    replayable: bool

    async def open(self) -> Sessions:
        sessions = VerifiersSessions(self)
        await sessions.link()
        return sessions


class VerifiersSessions:
    """nbrl.agent.tools.sessions.Sessions of a taskset, in one process."""

    def __init__(self, source: VerifiersSource) -> None:
        self._source = source
        self._link: ProgramLink | None = None
        self._opening = asyncio.Lock()
        self._numbers = itertools.count()

    async def link(self) -> ProgramLink:
        """Return the running program, which is started again if it ended."""
        async with self._opening:
            if self._link is None or self._link.fault:
                if self._link is not None:
                    await self._link.close()
                self._link = await ProgramLink.open(self._source.opening)
            return self._link

    async def start(self, asked: Asked, seed: int) -> EpisodeSession:
        reference = json_value(asked.reference)
        link, number = await self.link(), next(self._numbers)
        try:
            begun = await link.ask("start", START_S, session=number, split=reference["split"], data=reference["data"], seed=seed)
            session = VerifiersSession(link, number, self._source)
            session.equip(begun["tools"])
        except BaseException:
            await _ended(link, number)
            raise
        return session

    async def close(self) -> None:
        if self._link is not None:
            await self._link.close()


class VerifiersSession:
    """nbrl.agent.tools.sessions.EpisodeSession of a trajectory."""

    def __init__(self, link: ProgramLink, number: int, source: VerifiersSource) -> None:
        self._link, self._number, self._source = link, number, source
        self.step = 0
        self.done = False
        self._tools: list[Tool] = []

    @property
    def tools(self) -> Sequence[Tool]:
        return self._tools

    def equip(self, offered: Any) -> None:
        """Take the tools as the program described them."""
        from mcp import Tool as Described

        described = [Described.model_validate(each) for each in offered]
        self._tools = [tool.bound(self) for tool in mcp_tools(self._source.opening.taskset, described, None, ())]

    async def observe(self) -> str:
        return ""

    async def outcome(self, trajectory: Trajectory) -> Any:
        """Return the reward, which only the score sees."""
        steps = [None if step.kind == "summary" else _as_told(step) for step in trajectory.steps]
        scored = await self._ask("finish", steps=steps, answer=trajectory.answer, status=str(trajectory.status))
        reward = float(scored["reward"])
        success = reward >= self._source.success_from
        return {"reward": reward, "success": success, "steps": {}, "metrics": {**scored["metrics"], "reward": reward}}

    async def close(self) -> None:
        await _ended(self._link, self._number)

    async def call(self, tool: str, arguments: dict[str, Any]) -> Any:
        """Call a tool by its own name."""
        answered = await self._ask("call", step=self.step, tool=tool, arguments=arguments)
        self.done = bool(answered["done"])
        return answered["answer"]

    async def _ask(self, request: str, **fields: Any) -> Any:
        return await self._link.ask(request, self._source.limit_s, session=self._number, **fields)


def _as_told(step: Step) -> dict[str, str]:
    return {"think": step.think, "code": step.code, "observation": step.observation}


async def _ended(link: ProgramLink, number: int) -> None:
    """Let the program forget a session; one that does not answer has forgotten it, or will be ended."""
    if not link.fault:
        with suppress(InfraError, ValueError):
            await link.ask("end", END_S, session=number)
