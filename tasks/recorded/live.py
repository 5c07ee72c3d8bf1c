"""Open sessions of agents that run elsewhere: each is recorded until its reward comes, and then stored."""

import asyncio
import hashlib
import json
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from nbrl.agent.recorder.chat_api import ChatReply, ChatRequest, RequestError
from nbrl.agent.recorder.recorder import Recorder
from nbrl.agent.text import cut_middle, storable
from nbrl.agent.trajectory import Status, Step, Trajectory
from nbrl.infra.errors import StorageError
from nbrl.tasks.recorded.reward import SessionReward
from nbrl.tasks.recorded.store import ABILITY

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
OPEN = 4_096  # sessions at once
KNOWN = 100_000  # ended sessions whose answer to a reward is remembered
IDLE_S = 600.0  # after which a session without a request gives its place to another one, where there are too many
LOOK_S = 0.05
QUESTION_CHARS = 4_000
Store = Callable[[int, Trajectory], Awaitable[dict[str, Any]]]
"""Stores a session whose oldest token is of the weights with this number; returns the answer to its agent."""
Keep = Callable[[str, list[str]], None]
"""Keeps a question with what answers it. Raises StorageError."""


@dataclass(eq=False)
class LiveSession:
    """A session that has no reward yet: `running` requests, the last of which came at `seen` of the monotonic clock.

    `group` is for sessions whose first request was the same, `question` what its user said last. With its `reward` it is
    `stored`, as `made`.
    """

    name: str
    recorder: Recorder
    group: str
    question: str
    began: float = field(default_factory=time.time)
    seen: float = field(default_factory=time.monotonic)
    running: int = 0
    reward: SessionReward | None = None
    made: Trajectory | None = None
    said: dict[str, Any] | RequestError | None = None  # what the store said
    stored: asyncio.Task[dict[str, Any]] | None = None


class LiveSessions:
    """The sessions of one server. While weights change, requests wait: see `quiet`.

    With `keep`, questions are kept whose sessions say what answers them.
    """

    def __init__(self, recorder: Callable[[str], Recorder], store: Store, keep: Keep | None = None) -> None:
        self._recorder, self._store, self._keep = recorder, store, keep
        self._open: dict[str, LiveSession] = {}
        self._ended = OrderedDict[str, tuple[str, dict[str, Any] | RequestError]]()  # by name: digest of the reward, and answer
        self._begins, self._goes_on = asyncio.Event(), asyncio.Event()  # for requests of new sessions, and of open ones
        self._begins.set()
        self._goes_on.set()

    def __len__(self) -> int:
        return len(self._open)

    def check(self, name: str) -> None:
        """Raises RequestError if a session of this name answers no request."""
        if not NAME.fullmatch(name):
            raise RequestError("a session is named by up to 64 letters, digits, '_' and '-'", "no_session")
        if name in self._ended or ((session := self._open.get(name)) is not None and session.reward is not None):
            raise RequestError("this session has its reward, so it has ended; begin another one", "ended", 410)

    async def reply(self, name: str, request: ChatRequest) -> ChatReply:
        """Answer a request of a session, which begins with its first one that is answered. Raises RequestError."""
        self.check(name)
        if name not in self._open:
            await self._begins.wait()
        await self._goes_on.wait()
        self.check(name)
        session = self._open.get(name) or self._begun(name, request)
        session.running, session.seen = session.running + 1, time.monotonic()
        try:
            return await session.recorder.reply(request)
        finally:
            session.running, session.seen = session.running - 1, time.monotonic()
            if not session.running and not session.recorder.steps and session.recorder.fault is None:
                self._open.pop(name, None)

    def _begun(self, name: str, request: ChatRequest) -> LiveSession:
        if len(self._open) >= OPEN:
            idle = [each for each in self._open.values() if not each.running and each.stored is None]
            oldest = min(idle, key=lambda each: (each.recorder.fault is None, each.seen), default=None)
            if oldest is None or (oldest.recorder.fault is None and time.monotonic() - oldest.seen < IDLE_S):
                raise RequestError(f"{OPEN} sessions are open and wait for their reward; give them theirs", "too_many", 429)
            del self._open[oldest.name]
        first = json.dumps([request.messages, request.tools], sort_keys=True, default=str).encode()
        group = hashlib.sha256(first).hexdigest()[:16]
        question = next((each["content"] or "" for each in reversed(request.messages) if each["role"] == "user"), "")
        self._open[name] = LiveSession(name, self._recorder(name), group, question)
        return self._open[name]

    async def rewarded(self, name: str, reward: SessionReward) -> dict[str, Any]:
        """End a session and store it with its reward; return the answer to its agent. The same reward may be given again.

        Raises RequestError.
        """
        if reward.for_keeping and self._keep is None:
            raise RequestError("question and right are for nbrl serve --record --keep FILE, and it keeps nothing; leave them out")
        if (ended := self._ended.get(name)) is not None:
            if ended[0] != reward.digest:
                raise RequestError("this session has another reward, which stays", "ended", 409)
            if isinstance(ended[1], RequestError):
                raise ended[1]
            return ended[1]
        if (session := self._open.get(name)) is None:
            raise RequestError("there is no such session; its first request to the model begins it", "no_session", 404)
        if session.running:
            raise RequestError("a request of this session is still answered; give its reward afterwards", "busy", 409)
        if session.recorder.fault is not None:
            del self._open[name]
            raise RequestError("the engine failed in this session, so it is not learned from; begin another one", "engine", 503)
        if session.reward not in (None, reward):
            raise RequestError("this session has another reward, which stays", "ended", 409)
        if session.stored is None:  # what is stored is the same whenever the reward is given again
            session.reward = reward
            session.made = session.made or trajectory_of(session, reward)
            session.stored = asyncio.create_task(self._end(session, reward, session.made))
            session.stored.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(session.stored)  # also if its client has gone

    async def _end(self, session: LiveSession, reward: SessionReward, made: Trajectory) -> dict[str, Any]:
        """Store a session, unless it is refused, and keep its question. Raises RequestError; after a fault the rest may be done
        again.
        """
        try:
            said = session.said = session.said or await self._stored(made)
            if await self._kept(session, reward) and not isinstance(said, RequestError):
                said = {**said, "kept": True}
        except StorageError as error:
            session.stored = None
            raise RequestError("the session cannot be stored now; give its reward again", "storage", 503) from error
        except BaseException:
            session.stored = None
            raise
        session.recorder.close()
        self._open.pop(session.name, None)
        self._ended[session.name] = reward.digest, said
        if len(self._ended) > KNOWN:
            self._ended.popitem(last=False)
        if isinstance(said, RequestError):
            raise said
        return said

    async def _stored(self, made: Trajectory) -> dict[str, Any] | RequestError:
        """Store a session; return what its agent is answered. Raises StorageError."""
        try:
            return await self._store(min(int(node.weights_version) for node in made.sampled()), made)
        except RequestError as refused:
            return refused

    async def _kept(self, session: LiveSession, reward: SessionReward) -> bool:
        """Keep the question of a session, where that is asked and it is known what answers it. Raises StorageError."""
        question, right = storable(reward.question) or session.question, reward.right_answers()
        if self._keep is None or not question.strip() or not right:
            return False
        await asyncio.to_thread(self._keep, question, right)
        return True

    def drop(self) -> None:
        """End all open sessions without a reward: what answered them is no policy of the run any more."""
        for session in [each for each in self._open.values() if each.reward is None]:
            session.recorder.close()
            del self._open[session.name]

    @asynccontextmanager
    async def quiet(self, patience_s: float) -> AsyncIterator[None]:
        """Run the body while no request is answered. New sessions wait; open ones that still ask get `patience_s` seconds to end,
        so that few are answered by weights of two versions.
        """
        self._begins.clear()
        try:
            await self._until(lambda: not any(self._asks(each, patience_s) for each in self._open.values()), patience_s)
            self._goes_on.clear()
            await self._until(lambda: not any(each.running for each in self._open.values()))
            yield
        finally:
            self._goes_on.set()
            self._begins.set()

    def _asks(self, session: LiveSession, patience_s: float) -> bool:
        return bool(session.running) or time.monotonic() - session.seen < patience_s

    async def _until(self, true: Callable[[], bool], limit_s: float = float("inf")) -> None:
        until = time.monotonic() + limit_s
        while not true() and time.monotonic() < until:  # noqa: ASYNC110  # of many sessions, each for itself
            await asyncio.sleep(LOOK_S)


def trajectory_of(session: LiveSession, reward: SessionReward) -> Trajectory:
    """Return the trajectory of a session. Without a group of its own it is one of those that began with the same request."""
    steps, now = session.recorder.steps, time.time()
    return Trajectory(
        id=f"{session.name}.{secrets.token_hex(4)}",  # a server that was started again does not know the names before
        group=reward.group or session.group,
        sample=0,
        question=cut_middle(steps[0].observation, QUESTION_CHARS),
        ability=ABILITY,
        status=Status.ANSWERED if reward.answer else Status.NO_ANSWER,
        answer=reward.answer,
        nodes=session.recorder.nodes,
        steps=[Step.model_validate(step.model_dump()) for step in steps],
        started_at=session.began,
        seconds=now - session.began,
        outcome=reward.outcome(),
    )
