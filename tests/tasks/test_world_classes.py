"""Worlds as a first try may be written: each is refused before work starts, in one sentence that says what to do."""

import asyncio
import threading
import time
from typing import Any

import pytest

from nbrl.agent.errors import SessionError
from nbrl.agent.tools import sessions
from nbrl.agent.tools.sessions import Asked, GuardedSession
from nbrl.tasks.environments.kinds.own import OwnEnvironment
from nbrl.tasks.environments.mixture import with_groups
from nbrl.tasks.environments.own_world import WorldSessions, reference_of, tools_of
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.nodes.rollout import task_rows
from nbrl.tasks.own import Question, Score, Session, Trajectory, World, tool
from nbrl.tasks.rollout.runner import _hidden


class Room(Session):
    @tool
    def look(self, place: str) -> str:
        """Look at a place."""
        return place


class Rooms(World):
    session: type[Session] = Room

    def questions(self, split: str) -> Any:
        yield Question(f"{split}?", id=split)

    def start(self, question: Question, seed: int) -> Session:
        return self.session()

    def score(self, trajectory: Trajectory, reference: Any) -> Score:
        return Score(success=True)


class ClosingRooms(Rooms):
    class session(Room):  # noqa: N801
        @tool
        def close(self, door: str = "") -> None:  # type: ignore[override]
            """Close a door."""


class ReplacedRooms(Rooms):
    class session(Room):  # noqa: N801
        def look(self, place: str) -> str:
            return place


class StaticRooms(Rooms):
    class session(Session):  # noqa: N801
        @staticmethod
        @tool
        def look(place: str) -> str:
            """Look at a place."""
            return place


class SearchedRooms(Rooms):
    def corpus(self) -> Any:
        return ["a hall"]

    class session(Session):  # noqa: N801
        @tool
        def search(self, place: str) -> str:
            """Look at a place."""
            return place


class EndlessRooms(Rooms):
    class session(Room):  # noqa: N801
        @property
        def done(self) -> bool:  # type: ignore[override]
            raise KeyError("end")


class UnstartedRooms(Rooms):
    start = World.start


class UnscoredRooms(Rooms):
    score = World.score


class CountedRooms(Rooms):
    def questions(self, split: str) -> Any:
        yield Question(f"{split}?", max_steps="3")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (ClosingRooms, "session.close cannot be a tool, for nbrl calls it itself; give the tool another name"),
        (ReplacedRooms, "session.look replaces a tool and is none; write @tool above it"),
        (StaticRooms, "session.look is no plain method; take one with self"),
        (SearchedRooms, "has the tool 'search', and there is another one of this name; rename it"),
        (EndlessRooms, "could not say whether the task has ended: KeyError"),
        (UnstartedRooms, "UnstartedRooms has no method start; write it"),
        (UnscoredRooms, "UnscoredRooms has no method score; write it"),
        (CountedRooms, "max_steps of question train-000000 is no number"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_a_world_that_cannot_be_used_is_refused_before_work_starts(kind: type[World], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        OwnEnvironment(kind="own", place=f"{__name__}:{kind.__name__}").load("environments.e")


def test_a_tool_that_is_none_in_a_subclass_is_left_out() -> None:
    class Dark(Room):
        look = None  # type: ignore[assignment]

    assert [each.name for each in tools_of(Room)] == ["look"]
    assert tools_of(Dark) == ()


def test_a_question_has_its_own_id_in_every_epoch() -> None:
    table = OwnEnvironment(kind="own", place=f"{__name__}:Rooms").load("environments.e").train
    prompts = with_groups(table, [2])
    (row,) = task_rows(prompts, 1, 0)
    asked = _hidden(dict(row, files=[]), {}).asked
    assert row["group"] == "train.2"
    assert asked is not None
    assert asked.id == "train"


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_session_that_starts_too_late_is_closed(asynchronous: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "START_S", 0.05)
    closed = threading.Event()

    class Closing(Session):
        def close(self) -> None:
            closed.set()

    class ClosingLater(Session):
        async def close(self) -> None:  # type: ignore[override]
            closed.set()

    class SlowRooms(Rooms):
        def start(self, question: Question, seed: int) -> Session:
            time.sleep(0.3)
            return ClosingLater() if asynchronous else Closing()

    async def run() -> None:
        asked = Asked("q", "How many?", "own", "slow", reference_of(Question("How many?")))
        with pytest.raises(SessionError):
            await GuardedSession.start(WorldSessions(SlowRooms()), asked, 0, 1.0)
        assert not closed.is_set()
        assert await asyncio.to_thread(closed.wait, 10)

    asyncio.run(run())
