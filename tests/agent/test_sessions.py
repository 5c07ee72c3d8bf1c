"""Sessions: interleaved ones equal sequential ones, a call runs to its end, and faults are no answers."""

import asyncio
import json
import random
import time
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbrl.agent.errors import SessionError
from nbrl.agent.tools.base import BROKEN, GIVEN_UP, OVER, WAITED, Toolbox
from nbrl.agent.tools.sessions import ENDED, OUTCOME_CHARS, Asked, GuardedSession
from nbrl.agent.trajectory import Trajectory
from nbrl.tasks.environments.own_world import WorldSessions
from nbrl.tasks.own import Question, Session, World, tool
from nbrl.tasks.rollout.sessions import SessionPool
from tests.tasks.bank_world import Bank

ENDED_TRAJECTORY = Trajectory(
    id="t", group="t", sample=0, question="", ability="", status="done", answer=None, nodes=[], steps=[]
)
CALLS = st.lists(st.one_of(st.tuples(st.just("deposit"), st.integers(-3, 9)), st.tuples(st.just("draw"), st.none())), max_size=12)


def asked(target: int = 10) -> Asked:
    return Asked("q", "Bring it to 10.", "save", "bank", json.dumps({"reference": {"target": target}}))


async def started(world: World, seed: int = 0, limit_s: float = 5.0) -> GuardedSession:
    return await GuardedSession.start(WorldSessions(world), asked(), seed, limit_s)


async def played(seed: int, calls: Any, pause: random.Random | None = None) -> tuple[list[str], str]:
    """The answers and the outcome of a session, with pauses in which others act."""
    session = await started(Bank(), seed)
    toolbox = Toolbox(session.tools, {each.name for each in session.tools})
    for name, amount in calls:
        if pause is not None:
            await asyncio.sleep(pause.choice([0, 0, 0.001]))
        with suppress(ValueError):
            await toolbox.call(name, {} if amount is None else {"amount": amount})
    outcome = await session.outcome(ENDED_TRAJECTORY)
    await session.close()
    return [call.result for call in toolbox.take_calls()], outcome


@given(st.lists(CALLS, min_size=2, max_size=5), st.integers(0, 100))
def test_sessions_that_are_interleaved_equal_those_that_are_played_one_after_another(plays: Any, seed: int) -> None:
    async def together() -> list[tuple[list[str], str]]:
        rng = random.Random(seed)
        return await asyncio.gather(*(played(seed + number, calls, rng) for number, calls in enumerate(plays)))

    async def apart() -> list[tuple[list[str], str]]:
        return [await played(seed + number, calls) for number, calls in enumerate(plays)]

    assert asyncio.run(together()) == asyncio.run(apart())


def test_five_hundred_sessions_at_once_each_keep_their_state() -> None:
    rng = random.Random(0)
    plays = [[("deposit", rng.randint(-1, 3)) for _ in range(10)] for _ in range(500)]

    async def together() -> list[tuple[list[str], str]]:
        return await asyncio.gather(*(played(number, calls, rng) for number, calls in enumerate(plays)))

    for calls, (answers, outcome) in zip(plays, asyncio.run(together()), strict=True):
        balance, expected = 0, list[str]()
        for _, amount in calls:
            if balance == 10:
                expected.append(json.dumps(f"ValueError: {ENDED}"))
            elif amount <= 0:
                expected.append('"ValueError: the amount must be above 0"')
            else:
                balance += amount
                expected.append(str(balance))
        assert answers == expected
        assert json.loads(outcome)["balance"] == balance


class Slow(Session):
    def __init__(self) -> None:
        self.said: list[str] = []

    @tool
    async def say(self, word: str, seconds: float) -> str:
        """Say a word after some seconds."""
        self.said.append(f"{word} begins")
        await asyncio.sleep(seconds)
        self.said.append(f"{word} ends")
        return word

    def outcome(self) -> Any:
        return self.said


class Slowly(World):
    def start(self, question: Question, seed: int) -> Slow:
        return Slow()


def test_a_call_that_is_given_up_runs_to_its_end_and_one_that_waited_is_never_made() -> None:
    async def work() -> tuple[list[Any], str]:
        session = await started(Slowly())
        toolbox = Toolbox(session.tools)
        for word, wait_s in (("first", 0.01), ("second", 0.01)):  # the second waits for the first
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await toolbox.call("say", {"word": word, "seconds": 0.1})
        await toolbox.call("say", {"word": "third", "seconds": 0})
        outcome = await session.outcome(ENDED_TRAJECTORY)
        await session.close()
        return [json.loads(call.result) for call in toolbox.take_calls()], outcome

    answers, outcome = asyncio.run(work())
    assert json.loads(outcome) == ["first begins", "first ends", "third begins", "third ends"]
    assert answers == [GIVEN_UP, f"CancelledError: {WAITED}", "third"]


def test_after_the_end_of_a_trajectory_nothing_is_called_and_what_was_under_way_is_recorded() -> None:
    async def work() -> tuple[list[Any], str]:
        session = await started(Slowly())
        toolbox = Toolbox(session.tools)
        calls = []
        for word in ("first", "second"):  # the second waits for the first
            calls.append(asyncio.create_task(toolbox.call("say", {"word": word, "seconds": 0.05})))
            await asyncio.sleep(0)
        await toolbox.end()
        with pytest.raises(RuntimeError, match=OVER):
            await toolbox.call("say", {"word": "third", "seconds": 0})
        outcome = await session.outcome(ENDED_TRAJECTORY)
        await session.close()
        assert all(call.cancelled() for call in calls)
        return [json.loads(call.result) for call in toolbox.take_calls()], outcome

    answers, outcome = asyncio.run(work())
    assert sorted(answers) == sorted([GIVEN_UP, f"CancelledError: {WAITED}"])
    assert json.loads(outcome) == ["first begins", "first ends"]


def test_a_session_is_closed_after_the_call_that_it_still_answers() -> None:
    said: list[str] = []

    class Closing(Slow):
        def __init__(self) -> None:
            self.said = said

        @tool
        async def hang(self) -> None:
            """Wait for ever."""
            try:
                await asyncio.sleep(60)
            finally:
                said.append("left")

        async def close(self) -> None:  # type: ignore[override]
            said.append("closed")

    class Closes(World):
        def start(self, question: Question, seed: int) -> Slow:
            return Closing()

    async def work() -> None:
        session = await started(Closes())
        toolbox = Toolbox(session.tools)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await toolbox.call("hang", {})
        await session.close()

    asyncio.run(work())
    assert said == ["left", "closed"]


@pytest.mark.parametrize("where", ["start", "observe", "say"])
def test_a_session_whose_own_code_was_cancelled_is_a_fault_and_ends_nothing_else(where: str) -> None:
    async def cancelled() -> None:
        raise asyncio.CancelledError

    class Cancels(Slow):
        async def observe(self) -> str:  # type: ignore[override]
            await cancelled()
            return ""

        @tool
        async def say(self, word: str, seconds: float) -> str:
            """Say nothing."""
            await cancelled()
            return word

    class Cancelling(World):
        async def start(self, question: Question, seed: int) -> Slow:  # type: ignore[override]
            if where == "start":
                await cancelled()
            return Cancels()

    async def work() -> None:
        session = await started(Cancelling())
        toolbox = Toolbox(session.tools)
        try:
            if where == "observe":
                await session.observe()
            with pytest.raises(RuntimeError, match=BROKEN):
                await toolbox.call("say", {"word": "", "seconds": 0})
            raise toolbox.fault or AssertionError
        finally:
            await session.close()

    with pytest.raises(SessionError, match="CancelledError"):
        asyncio.run(work())


def test_a_session_that_raises_hides_why_from_the_cell_and_answers_no_more() -> None:
    async def work() -> tuple[Toolbox, GuardedSession]:
        session = await started(Bank())
        toolbox = Toolbox(session.tools)
        for _ in range(2):
            with pytest.raises(RuntimeError, match=BROKEN):
                await toolbox.call("deposit", {"amount": 666})
        with pytest.raises(SessionError, match="the bank burns"):
            await session.outcome(ENDED_TRAJECTORY)
        await session.close()
        return toolbox, session

    toolbox, _ = asyncio.run(work())
    assert "Account.deposit: ValueError: the bank burns" in str(toolbox.fault)
    assert all("burns" not in call.result for call in toolbox.take_calls())


class Odd(Session):
    """Fails as it is told."""

    def __init__(self, how: str) -> None:
        self.how = how

    def observe(self) -> Any:
        match self.how:
            case "no text":
                return 7
            case "long":
                return "x" * 1_000_000
            case "hangs":
                time.sleep(2)
            case "exits":
                raise SystemExit(3)
        return ""

    def outcome(self) -> Any:
        return {"nan": float("nan"), "set": {1}, "huge": "x" * (OUTCOME_CHARS + 1), "raises": 0}.get(self.how)


@pytest.mark.parametrize("how", ["no text", "long", "hangs", "exits", "nan", "set", "huge"])
def test_a_session_that_cannot_say_how_it_begins_or_ended_is_a_fault(how: str) -> None:
    class Strange(World):
        def start(self, question: Question, seed: int) -> Odd:
            return Odd(how)

    async def work() -> None:
        session = await started(Strange(), limit_s=0.3)
        try:
            await session.observe()
            await session.outcome(ENDED_TRAJECTORY)
        finally:
            await session.close()

    with pytest.raises(SessionError, match="bank: "):
        asyncio.run(work())


def test_sessions_that_cannot_be_opened_fail_all_that_wait_at_once_and_are_opened_again_for_the_next() -> None:
    class Source:
        replayable, opened = True, 0

        async def open(self) -> WorldSessions:
            self.opened += 1
            await asyncio.sleep(0.01)
            if self.opened == 1:
                raise OSError("no server")
            return WorldSessions(Bank())

    source = Source()

    async def one(pool: SessionPool) -> str:
        async with pool.session(asked(), 0) as session:
            assert session is not None
            return await session.observe()

    async def work() -> None:
        pool = SessionPool({"bank": source}, 5.0)
        failed = await asyncio.gather(*(one(pool) for _ in range(9)), return_exceptions=True)
        assert {str(each) for each in failed} == {"bank: its sessions cannot be opened: OSError: no server"}
        assert set(await asyncio.gather(*(one(pool) for _ in range(9)))) == {"The account holds 0."}
        await pool.close()

    asyncio.run(work())
    assert source.opened == 2
