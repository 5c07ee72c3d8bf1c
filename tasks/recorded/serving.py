"""Answers and records agents that run elsewhere by the newest policy of a run, whose weights it takes over as they are made."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from nbrl.agent.policies.sglang import SglangPolicy, engine_session
from nbrl.agent.recorder.chat_api import RequestError
from nbrl.agent.recorder.recorder import Recorder
from nbrl.agent.tokens.conversation import Conversations
from nbrl.agent.tokens.rendering import rendering
from nbrl.agent.tokens.tokenizer import ChatTokenizer
from nbrl.agent.trajectory import Trajectory
from nbrl.infra.engine.client import EngineClient
from nbrl.infra.engine.server import EngineServer
from nbrl.infra.engine.settings import headers
from nbrl.infra.errors import EngineError, StorageError
from nbrl.infra.storage import Storage
from nbrl.tasks.environments.kinds.recorded import RecordedEnvironment
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.evaluation.subject import check_began_with, model_folder, subject_of_run
from nbrl.tasks.recorded.live import LiveSessions
from nbrl.tasks.recorded.server import LiveDoor, LiveServer
from nbrl.tasks.recorded.store import keep
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.history import newest_policy
from nbrl.tasks.runs.opening import stored_config
from nbrl.tasks.runs.run import known_run
from nbrl.tasks.runs.scope import Weights
from nbrl.tasks.seeds import derive_seed

LOOK_S = 1.0  # between two looks for new weights
ATTEMPTS, AGAIN_S = 3, 2.0  # to bring weights into the engine
Say = Callable[[str], None]


class RecordedRun:
    """A run that learns from recorded sessions, and the policy of it that answers them. Raises ConfigError for another run."""

    def __init__(self, storage: Storage, name: str, home: Path) -> None:
        self.storage, self.run = storage, known_run(storage, name)
        config = stored_config(storage, self.run)
        if (environment := config.recorded) is None:
            raise ConfigError(
                f"run {name!r} has no environment of the kind recorded, so it learns from no session; train one with "
                "environments: {live: {kind: recorded}}, or leave --record out"
            )
        self.environment: RecordedEnvironment = environment
        self.config: RunConfig = config.model_copy(update={"home": str(home), "storage": storage.settings})
        self.served = newest_policy(storage, self.run)
        self._weights = {self.served.updates: self.served}  # that have answered

    def enter(self, stack: ExitStack) -> Path:
        """Return the folder of the policy that is served, for as long as the stack is open."""
        updates = self.served.updates
        subject = subject_of_run(self.storage, self.run.name, updates)
        check_began_with(self.config, subject)
        return stack.enter_context(model_folder(self.config, subject))

    def newest(self) -> Weights:
        return newest_policy(self.storage, self.run)

    def goes_on_from(self, policy: Weights) -> bool:
        """Serve another policy; return whether it is a later one, and not what was done again."""
        later = policy.updates > self.served.updates
        self._weights = {**(self._weights if later else {}), policy.updates: policy}
        self.served = policy
        return later

    async def store(self, oldest: int, session: Trajectory) -> dict[str, Any]:
        """Store a rewarded session, unless it is older than the run learns from. Raises RequestError and StorageError."""
        lag, newest = self.config.pipeline.lag, self.served.updates
        if newest - oldest > lag:
            raise RequestError(
                f"the session was answered by weights {oldest}, and the run has made {newest}: with pipeline.lag {lag} it "
                "learns nothing from it",
                "too_old",
                409,
            )
        await asyncio.to_thread(keep, self.storage, self.run, self._weights[oldest], session)
        return {"weights": oldest, "newest": newest}


@asynccontextmanager
async def recording(
    of_run: RecordedRun, engine: EngineServer, folder: Path, door: LiveDoor, patience_s: float, say: Say
) -> AsyncIterator[asyncio.Task[None]]:
    """Serve sessions until the end of the body; `folder` has the tokenizer. Yield what follows the run's weights:
    it ends only with an error.
    """
    config = of_run.config
    async with AsyncExitStack() as stack:
        stack.enter_context(rendering())
        tokenizer = await asyncio.to_thread(ChatTokenizer.load, folder, config.agent)
        conversations = await asyncio.to_thread(Conversations.load, tokenizer, config.agent)
        session = await stack.enter_async_context(engine_session(engine.settings.request_timeout_s, headers(engine.key)))
        policy = SglangPolicy(session, engine.url, tokenizer.stop_ids, config.sampling, engine.settings.seeded_sampling)
        parser = of_run.environment.tool_parser
        calls = None if parser is None else partial(policy.parse_calls, parser)

        def begun(name: str) -> Recorder:
            return Recorder(conversations, policy, config.agent, derive_seed(of_run.run.seed, "session", name), calls)

        sessions = LiveSessions(begun, of_run.store)
        client = await stack.enter_async_context(engine.client())
        server = LiveServer(sessions, of_run.run.name, door)
        await stack.enter_async_context(server.listening())
        following = asyncio.create_task(_follow(of_run, sessions, client, patience_s, say))
        try:
            yield following
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


async def _follow(of_run: RecordedRun, sessions: LiveSessions, client: EngineClient, patience_s: float, say: Say) -> None:
    """Serve the newest policy of the run as soon as there is one."""
    away = False
    while True:
        await asyncio.sleep(LOOK_S)
        try:
            newest = await asyncio.to_thread(of_run.newest)
        except StorageError as error:
            if not away:
                say(f"new weights cannot be looked for, the old ones are served: {error}")
            away = True
            continue
        away = False
        if newest == of_run.served:
            continue
        began = time.monotonic()
        async with sessions.quiet(patience_s):
            if not of_run.goes_on_from(newest):
                sessions.drop()
            await _publish(of_run, client)
        say(f"weights {newest.updates} are served, after {time.monotonic() - began:.1f} s")


async def _publish(of_run: RecordedRun, client: EngineClient) -> None:
    for attempt in range(ATTEMPTS):
        with ExitStack() as stack:
            folder = await asyncio.to_thread(of_run.enter, stack)
            try:
                await client.publish(folder, str(of_run.served.updates))
                return
            except EngineError:
                if attempt == ATTEMPTS - 1:
                    raise
        await asyncio.sleep(AGAIN_S)
