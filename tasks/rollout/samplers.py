"""Samples the actions of a runner's episodes from our own engines, or from a model behind another server."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count, islice
from typing import Protocol

import aiohttp

from nbrl.agent.errors import PolicyError
from nbrl.agent.http.client import model_client, usable_key
from nbrl.agent.policies.chat import ChatPolicy
from nbrl.agent.policies.sglang import SglangPolicy, engine_session
from nbrl.agent.policy import Policy
from nbrl.agent.recorder.recorder import CallParser
from nbrl.agent.routes import RouteLog
from nbrl.agent.tokens.conversation import Conversations
from nbrl.agent.tokens.estimated import EstimatingRenderer
from nbrl.agent.tokens.tokenizer import ChatTokenizer
from nbrl.infra.engine.settings import headers
from nbrl.infra.node_cache import NodeCache
from nbrl.tasks.rollout.plan import EngineAddress, RoundPlan, RunnerPlan

EVERY_S = 2.0
LIMIT_S = 5.0  # a later answer counts as none


class EngineProbe:
    """Notes how long an engine did not answer, or the runner itself was suspended. `url` says where the engine is now.

    An episode whose time passed meanwhile did not cause it.
    """

    def __init__(self, session: aiohttp.ClientSession, url: Callable[[], str]) -> None:
        self._session, self._url = session, url
        self.reached = True  # when it was asked last
        self._gaps: dict[float, float] = {}  # when the last answer before one came, and when that gap was seen last

    def missed_s(self, moment: float) -> float:
        """Return the seconds without an answer after `moment` of the monotonic clock."""
        return sum(max(0.0, end - max(begin, moment)) for begin, end in self._gaps.items())

    async def watch(self) -> None:
        """Ask until cancelled. Any HTTP answer counts as reachable."""
        answered = time.monotonic()
        while True:
            self.reached = await self._asked()
            now = time.monotonic()
            if not self.reached or now - answered > EVERY_S + LIMIT_S:
                self._gaps[answered] = now
            if self.reached:
                answered = now
            await asyncio.sleep(EVERY_S)

    async def _asked(self) -> bool:
        try:
            async with self._session.get(f"{self._url()}/model_info", timeout=aiohttp.ClientTimeout(total=LIMIT_S)):
                return True
        except (aiohttp.ClientError, TimeoutError):
            return False


class Probe(Protocol):
    """Knows whether an engine answered when it was asked last."""

    reached: bool


@dataclass
class Engines:
    """The engines of a round where they are now: one that is started again may be elsewhere. `first` takes the first episode."""

    now: Sequence[EngineAddress]
    first: int = 0


@dataclass(frozen=True)
class Sampler:
    """The policy of one episode, whether its engine was away meanwhile, and for how many seconds it was out of reach; `calls`
    reads the calls of tools in a text, `routes` are those of its tokens.
    """

    policy: Policy
    was_away: Callable[[], Awaitable[bool]]
    missed_s: Callable[[], float]
    calls: CallParser | None = None
    routes: RouteLog | None = None


class EngineSamplers:
    """Samples from the engines of a round, an episode from one of them: token ids in and out."""

    def __init__(self, plan: RunnerPlan) -> None:
        self._parser = plan.agent.tool_parser
        with plan.model.lease(NodeCache(plan.nodes)) as lease:
            self.renderer = ChatTokenizer.load(lease.path, plan.agent)
            program = plan.agent.kind == "program"
            self.conversations = Conversations.load(self.renderer, plan.agent) if program else None

    @asynccontextmanager
    async def opened(self, plan: RoundPlan, engines: Engines) -> AsyncIterator[Callable[[], Sampler]]:
        engine, turns = plan.engine, count(engines.first)
        async with engine_session(engine.request_timeout_s, headers(engines.now[0].key)) as session:
            urls = [partial(_url, engines, number) for number in range(len(engines.now))]
            probes = [EngineProbe(session, url) for url in urls]
            watches = [asyncio.create_task(probe.watch()) for probe in probes]

            def new() -> Sampler:
                turn, began = turn_of(turns, probes), time.monotonic()
                routes = RouteLog() if plan.routed else None
                policy = SglangPolicy(
                    session,
                    urls[turn],
                    self.renderer.stop_ids,
                    plan.sampling,
                    engine.seeded_sampling,
                    engines.now[turn].adapter,
                    engines.now[turn].version,
                    away_s=engine.start_timeout_s,
                    routes=routes,
                )

                async def was_away() -> bool:
                    return policy.interrupted or not await policy.serves()

                parser = self._parser
                calls = None if parser is None else partial(policy.parse_calls, parser)
                return Sampler(policy, was_away, lambda: probes[turn].missed_s(began), calls, routes)

            try:
                yield new
            finally:
                for watch in watches:
                    watch.cancel()
                await asyncio.gather(*watches, return_exceptions=True)


def turn_of(turns: Iterator[int], probes: Sequence[Probe]) -> int:
    """Return the next engine in turn of those that answered when they were asked last; of all, if none did."""
    for turn in islice(turns, len(probes)):
        if probes[turn % len(probes)].reached:
            break
    return turn % len(probes)


def _url(engines: Engines, number: int) -> str:
    return engines.now[number].url


class ServerSamplers:
    """Samples from a model behind a chat API. A server that does not answer costs an attempt; a slow one costs the episode."""

    def __init__(self, plan: RunnerPlan) -> None:
        if plan.server is None:
            raise ValueError("there is no server in the plan")
        self._server, self._plan = plan.server, plan
        self.renderer = EstimatingRenderer(self._server.chat.sees_images)
        self.conversations = None

    @asynccontextmanager
    async def opened(self, plan: RoundPlan, engines: Engines) -> AsyncIterator[Callable[[], Sampler]]:
        try:
            key = usable_key(self._server.key)
        except ValueError as error:
            raise PolicyError(f"{self._server.chat.endpoint}: {error} where the episodes run") from error
        chat, timeout_s = self._server.chat, plan.engine.request_timeout_s
        async with model_client(chat.endpoint, key, self._plan.rollout.episodes_per_runner, timeout_s) as client:
            yield lambda: Sampler(ChatPolicy(client, chat, plan.sampling, self._plan.agent.thinking), _never, lambda: 0.0)


async def _never() -> bool:
    return False


Samplers = EngineSamplers | ServerSamplers


def samplers_of(plan: RunnerPlan) -> Samplers:
    return EngineSamplers(plan) if plan.server is None else ServerSamplers(plan)
