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
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.evaluation.subject import check_began_with, model_folder, subject_of_run
from nbrl.tasks.recorded.live import Keep, LiveSessions
from nbrl.tasks.recorded.server import LiveDoor, LiveServer
from nbrl.tasks.recorded.store import keep
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.history import newest_policy
from nbrl.tasks.runs.opening import stored_config
from nbrl.tasks.runs.run import known_run
from nbrl.tasks.runs.scope import Weights
from nbrl.tasks.seeds import derive_seed

LOOK_S = 1.0  # between two looks for new weights
ATTEMPTS, AGAIN_S = 60, 2.0  # to bring weights into the engine
Say = Callable[[str], None]


class RecordedRun:
    """A run that learns from recorded sessions, and the policy of it that answers them. With `keep` it may be any run: one that
    learns from no sessions stores none. Raises ConfigError for another run.
    """

    def __init__(self, storage: Storage, name: str, home: Path, policy: str | None = None, keep: Keep | None = None) -> None:
        """Read a run. `policy` is the folder of the model that it began with, where that is elsewhere on this machine."""
        self.storage, self.run = storage, known_run(storage, name)
        config = stored_config(storage, self.run)
        if config.recorded is None and keep is None:
            raise ConfigError(
                f"run {name!r} has no environment of the kind recorded, so it learns from no session; train one with "
                "environments: {live: {kind: recorded}}, name a file of questions by --keep, or leave --record out"
            )
        self.environment, self.keep = config.recorded, keep
        self.name = next((each for each, kind in config.environments.items() if kind is config.recorded), "")
        began = config.policy if policy is None else config.policy.model_copy(update={"path": policy})
        here = {"home": str(home), "storage": storage.settings, "policy": began}
        self.config: RunConfig = config.model_copy(update=here)
        self.served = newest_policy(storage, self.run)
        self._weights = {self.served.updates: self.served}  # that have answered

    def enter(self, stack: ExitStack, policy: Weights) -> Path:
        """Return the folder of a policy of the run, for as long as the stack is open."""
        subject = subject_of_run(self.storage, self.run.name, policy.updates)
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
        """Store a rewarded session, unless it is older than the run learns from, or the run learns from none. Raises RequestError
        and StorageError.
        """
        lag, newest = self.config.pipeline.lag, self.served.updates
        said = {"weights": oldest, "newest": newest}
        if self.environment is None:
            return said
        if oldest not in self._weights:
            raise RequestError(f"the run did its updates again since weights {oldest} answered the session", "too_old", 409)
        if newest - oldest > lag:
            raise RequestError(
                f"the session was answered by weights {oldest}, and the run has made {newest}: with pipeline.lag {lag} it "
                "learns nothing from it",
                "too_old",
                409,
            )
        await asyncio.to_thread(keep, self.storage, self.run, self._weights[oldest], session)
        return said


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
        seeded, away_s = engine.settings.seeded_sampling, engine.settings.start_timeout_s
        policy = SglangPolicy(session, engine.url, tokenizer.stop_ids, config.sampling, seeded, away_s=away_s)
        parser = of_run.environment.tool_parser if of_run.environment else config.agent.tool_parser
        calls = None if parser is None else partial(policy.parse_calls, parser)

        def begun(name: str) -> Recorder:
            seed = derive_seed(of_run.run.seed, "session", name)
            key = f"environments.{of_run.name}.tool_parser" if of_run.name else "agent.tool_parser"
            return Recorder(conversations, policy, config.agent, seed, calls, parser_key=key)

        sessions = LiveSessions(begun, of_run.store, of_run.keep)
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
    """Serve the newest policy of the run as soon as there is one. What cannot be read now is tried again."""
    fault = ""
    while True:
        await asyncio.sleep(LOOK_S)
        began = time.monotonic()
        try:
            with ExitStack() as stack:
                newest = await asyncio.to_thread(of_run.newest)
                if newest == of_run.served:
                    continue
                folder = await asyncio.to_thread(of_run.enter, stack, newest)
                async with sessions.quiet(patience_s):
                    await _publish(client, folder, newest)
                    if not of_run.goes_on_from(newest):
                        sessions.drop()
        except (StorageError, ConfigError) as error:  # another process may be deleting what is not the newest any more
            if str(error) != fault:
                say(f"the newest weights cannot be read, and those before are served: {error}")
            fault = str(error)
            continue
        fault = ""
        say(f"weights {newest.updates} are served, after {time.monotonic() - began:.1f} s")


async def _publish(client: EngineClient, folder: Path, policy: Weights) -> None:
    """Bring weights into the engine, which may just be started again."""
    for attempt in range(ATTEMPTS):
        try:
            await client.publish(folder, str(policy.updates))
            return
        except EngineError:
            if attempt == ATTEMPTS - 1:
                raise
        await asyncio.sleep(AGAIN_S)
