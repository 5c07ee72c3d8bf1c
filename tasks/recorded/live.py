"""Open sessions of agents that run elsewhere: each is recorded until its reward comes, and then stored."""

import asyncio
import hashlib
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from nbrl.agent.recorder.chat_api import RequestError
from nbrl.agent.recorder.recorder import Recorder
from nbrl.agent.text import cut_middle
from nbrl.agent.trajectory import Status, Step, Trajectory
from nbrl.infra.errors import StorageError
from nbrl.tasks.recorded.reward import SessionReward
from nbrl.tasks.recorded.store import ABILITY

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
OPEN = 4_096  # sessions at once
KNOWN = 100_000  # ended sessions whose answer to a reward is remembered
IDLE_S = 24 * 3600.0  # after which a session without a request or reward is dropped
LOOK_S = 0.05
QUESTION_CHARS = 4_000
Store = Callable[[int, Trajectory], Awaitable[dict[str, Any]]]
"""Stores a session whose oldest token is of the weights with this number; returns the answer to its agent."""


@dataclass(eq=False)
class LiveSession:
    """A session that has no reward yet: `running` requests, the last of which came at `seen` of the monotonic clock."""

    recorder: Recorder
    began: float = field(default_factory=time.time)
    seen: float = field(default_factory=time.monotonic)
    running: int = 0
    storing: bool = False


class LiveSessions:
    """The sessions of one server. While weights change, requests wait: see `quiet`."""

    def __init__(self, recorder: Callable[[str], Recorder], store: Store) -> None:
        self._recorder, self._store = recorder, store
        self._open: dict[str, LiveSession] = {}
        self._ended = OrderedDict[str, tuple[SessionReward, dict[str, Any]]]()
        self._begins, self._goes_on = asyncio.Event(), asyncio.Event()  # for requests of new sessions, and of open ones
        self._begins.set()
        self._goes_on.set()

    def __len__(self) -> int:
        return len(self._open)

    @asynccontextmanager
    async def request(self, name: str) -> AsyncIterator[Recorder]:
        """Give the recorder of a session, which begins with its first request, for as long as one is answered.

        Raises RequestError.
        """
        self._check(name)
        if name not in self._open:
            await self._begins.wait()
        await self._goes_on.wait()
        self._check(name)
        session = self._open.get(name) or self._begun(name)
        session.running, session.seen = session.running + 1, time.monotonic()
        try:
            session.recorder.check()
            yield session.recorder
        finally:
            session.running, session.seen = session.running - 1, time.monotonic()

    def _check(self, name: str) -> None:
        if not NAME.fullmatch(name):
            raise RequestError("a session is named by up to 64 letters, digits, '_' and '-'", "no_session")
        if name in self._ended:
            raise RequestError("this session has its reward, so it has ended; begin another one", "ended", 410)

    def _begun(self, name: str) -> LiveSession:
        now = time.monotonic()
        for old in [old for old, each in self._open.items() if not each.running and now - each.seen > IDLE_S]:
            del self._open[old]
        if len(self._open) >= OPEN:
            raise RequestError(f"{OPEN} sessions are open and wait for their reward; give them theirs", "too_many", 429)
        self._open[name] = LiveSession(self._recorder(name))
        return self._open[name]

    async def rewarded(self, name: str, reward: SessionReward) -> dict[str, Any]:
        """End a session and store it with its reward; return the answer to its agent. The same reward may be given again.

        Raises RequestError, after which an open session still waits for its reward.
        """
        if (ended := self._ended.get(name)) is not None:
            if ended[0] != reward:
                raise RequestError("this session has another reward, which stays", "ended", 409)
            return ended[1]
        if (session := self._open.get(name)) is None:
            raise RequestError("there is no such session; its first request to the model begins it", "no_session", 404)
        if session.running or session.storing:
            raise RequestError("a request of this session is still answered; give its reward afterwards", "busy", 409)
        if session.recorder.fault is not None:
            del self._open[name]
            raise RequestError("the engine failed in this session, so it is not learned from; begin another one", "engine", 503)
        if not session.recorder.steps:
            raise RequestError("the model has answered no request of this session, so there is nothing to reward", "empty", 409)
        session.storing = True
        try:
            made = trajectory_of(name, session, reward)
            answer_ = await self._store(min(int(node.weights_version) for node in made.sampled()), made)
        except StorageError as error:
            raise RequestError("the session cannot be stored now; give its reward again", "storage", 503) from error
        finally:
            session.storing = False
        session.recorder.close()
        del self._open[name]
        self._ended[name] = reward, answer_
        if len(self._ended) > KNOWN:
            self._ended.popitem(last=False)
        return answer_

    def drop(self) -> None:
        """End all open sessions without a reward: what answered them is no policy of the run any more."""
        for session in self._open.values():
            session.recorder.close()
        self._open.clear()

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


def trajectory_of(name: str, session: LiveSession, reward: SessionReward) -> Trajectory:
    """Return the trajectory of a session. Without a group of its own it is one of those that began with the same words."""
    steps, now = session.recorder.steps, time.time()
    begin = steps[0].observation
    answer = reward.answer if reward.answer is not None else session.recorder.answer
    return Trajectory(
        id=f"{name}.{secrets.token_hex(4)}",  # a server that was started again does not know the names before
        group=reward.group or hashlib.sha256(begin.encode()).hexdigest()[:16],
        sample=0,
        question=cut_middle(begin, QUESTION_CHARS),
        ability=ABILITY,
        status=Status.ANSWERED if answer else Status.NO_ANSWER,
        answer=answer,
        nodes=session.recorder.nodes,
        steps=[Step.model_validate(step.model_dump()) for step in steps],
        started_at=session.began,
        seconds=now - session.began,
        outcome=reward.outcome(),
    )
