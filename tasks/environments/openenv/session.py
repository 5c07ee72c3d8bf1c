"""The sessions of an OpenEnv environment: one episode, one connection; the reward stays on the host."""

import asyncio
import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nbrl.agent.errors import SessionError
from nbrl.agent.tools.base import Tool
from nbrl.agent.tools.mcp.tools import McpTool
from nbrl.agent.tools.sessions import Asked
from nbrl.agent.trajectory import Trajectory
from nbrl.infra.parse import json_value
from nbrl.tasks.environments.openenv.actions import STATE, ActionKind, action_kinds, action_tools, calls_tools
from nbrl.tasks.environments.openenv.connection import FullError, OpenEnvConnection, page
from nbrl.tasks.environments.openenv.server import LocalServer

OPENING_CHARS = 50_000
MOST_REWARD = 1000.0  # of one action, in units of a whole success
FULL_S, AGAIN_S = 100.0, 0.5
NEAR = 1e-9
HIDDEN = ("reward", "metadata")  # fields of an observation that no cell reads


@dataclass(frozen=True)
class OpenEnvSource:
    """Opens the sessions of a server, by its address or the command that starts it: a SessionSource."""

    url: str
    command: tuple[str, ...]
    full_reward: float
    show_reward: bool
    show_state: bool
    replayable: bool
    taken: tuple[str, ...] = ()

    async def open(self) -> "OpenEnvSessions":
        """Reach the server, started where that is due, and learn its actions. Raises SessionError."""
        sessions = OpenEnvSessions(self)
        try:
            await sessions.learn()
        except BaseException:
            await sessions.close()
            raise
        return sessions


class OpenEnvSessions:
    """The sessions of one server; see nbrl.agent.tools.sessions.Sessions. A server that ended is started again."""

    def __init__(self, source: OpenEnvSource) -> None:
        self.source = source
        self._server: LocalServer | None = None
        self._starting = asyncio.Lock()
        self.kinds: Mapping[str, ActionKind] = {}
        self.tools: list[McpTool] = []

    async def learn(self) -> None:
        """Learn the actions from the server."""
        address = await self.address()
        schema = await page(address, "/schema")
        action, observed = [given if isinstance(given, dict) else {} for given in map(schema.get, ("action", "observation"))]
        kinds = action_kinds(action, observed, await _listed(address) if calls_tools(action) else None)
        self.kinds = {kind.name: kind for kind in kinds}
        self.tools = action_tools("openenv", kinds, self.source.taken, self.source.show_state)

    async def address(self) -> str:
        """Return where the server is, once it is there."""
        if self.source.url:
            return self.source.url.rstrip("/")
        async with self._starting:
            if self._server is not None and not self._server.alive:
                await self._server.stop()
                self._server = None
            if self._server is None:
                server = LocalServer(self.source.command)
                try:
                    await server.start()
                except BaseException:
                    await asyncio.shield(server.stop())
                    raise
                self._server = server
            return self._server.address

    async def start(self, asked: Asked, seed: int) -> "OpenEnvSession":
        """Begin an episode by the seed of its question. Where the server has no session to spare, wait for one for a while."""
        reset = json_value(asked.reference)
        end = asyncio.get_running_loop().time() + FULL_S
        while True:
            connection = await OpenEnvConnection.open(await self.address())
            try:
                return OpenEnvSession(self, connection, await connection.ask("reset", reset))
            except FullError as error:
                await connection.close()
                if asyncio.get_running_loop().time() > end:
                    raise SessionError(
                        f"{error}, for {FULL_S:g} s; let it serve as many sessions at once as a runner has episodes"
                    ) from error
            except ValueError as error:
                await connection.close()
                raise SessionError(f"its server did not take the reset: {error}") from error
            except BaseException:
                await asyncio.shield(connection.close())
                raise
            await asyncio.sleep(AGAIN_S)

    async def close(self) -> None:
        """End the server, if it was started here."""
        if self._server is not None:
            await self._server.stop()
            self._server = None


class OpenEnvSession:
    """One episode: an nbrl.agent.tools.sessions.EpisodeSession."""

    def __init__(self, sessions: OpenEnvSessions, connection: OpenEnvConnection, opening: dict[str, Any]) -> None:
        self.step, self.done = 0, False
        self._sessions, self._connection = sessions, connection
        self._paid: dict[int, float] = defaultdict(float)
        self._actions = 0
        observation, _, self.done = _read(opening)
        self._opening = observation
        self.tools: Sequence[Tool] = [tool.bound(self) for tool in sessions.tools]

    async def observe(self) -> str:
        """Return the first observation: a field for each line, only the text where there is one field."""
        fields = {key: value for key, value in self._opening.items() if value not in (None, "", [], {})}
        lines = [value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in fields.values()]
        if len(fields) > 1:
            lines = [f"{key}: {line}" for key, line in zip(fields, lines, strict=True)]
        return "\n".join(lines)[:OPENING_CHARS]

    async def call(self, name: str, arguments: dict[str, Any]) -> Any:
        """Take an action; return its observation. Raises ValueError if the environment refuses it."""
        if name == STATE and name not in self._sessions.kinds:
            return await self._connection.ask("state")
        kind, step = self._sessions.kinds[name], self.step  # which may change before the answer comes
        observation, reward, done = _read(await self._connection.ask("step", kind.action(arguments)))
        share = reward / self._sessions.source.full_reward
        if abs(share) > MOST_REWARD:
            raise SessionError(f"its server paid {reward:g}, more than {MOST_REWARD:g} times full_reward")
        self._paid[step] += share
        self._actions += 1
        self.done = done
        if kind.called:
            observation = _result(observation)
        shown = {"reward": reward} if self._sessions.source.show_reward else {}
        return {**observation, **shown, "done": done}

    async def outcome(self, trajectory: Trajectory) -> Any:
        """Return what the score needs: the reward by steps, as shares of a whole success."""
        total = math.fsum(self._paid.values())
        steps = {str(number): paid for number, paid in self._paid.items()}
        return {
            "success": total >= 1.0 - NEAR,
            "reward": total,
            "steps": steps,
            "metrics": {"reward": total * self._sessions.source.full_reward, "actions": self._actions},
        }

    async def close(self) -> None:
        await self._connection.close()


def _read(answer: Mapping[str, Any]) -> tuple[dict[str, Any], float, bool]:
    """Return the observation, reward and end of an answer. The reward is what is beside the observation, and nowhere else."""
    observation, reward, done = answer.get("observation"), answer.get("reward"), answer.get("done", False)
    if not isinstance(observation, dict) or not isinstance(done, bool):
        raise SessionError("its server answered what is no observation of the protocol")
    try:
        paid = 0.0 if reward is None else float(reward) if isinstance(reward, int | float) else math.nan
    except OverflowError:
        paid = math.inf
    if not math.isfinite(paid):
        raise SessionError(f"its server paid {repr(reward)[:40]}, which is no finite number")
    return {key: value for key, value in observation.items() if key not in HIDDEN}, paid, done


def _result(observation: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a tool of the environment answered, without what surrounds it. Raises ValueError for its error."""
    error, result = observation.get("error"), observation.get("result")
    if isinstance(error, dict):
        raise ValueError(str(error.get("message"))[:500])
    if isinstance(result, dict) and result.get("data") is not None:
        result = result["data"]
    return {"result": result}


async def _listed(address: str) -> object:
    """Return the tools that the environment lists."""
    connection = await OpenEnvConnection.open(address)
    try:
        await connection.ask("reset", {})
        observation, _, _ = _read(await connection.ask("step", {"type": "list_tools"}))
        return observation.get("tools")
    except ValueError as error:
        raise SessionError(f"its server lists no tools: {error}") from error
    finally:
        await connection.close()
