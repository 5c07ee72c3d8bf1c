"""Demonstrations by the class of an environment of one's own: its method `demonstrate`."""

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from nbrl.agent.errors import AgentError
from nbrl.agent.text import with_files
from nbrl.agent.tools.sessions import Asked, GuardedSession
from nbrl.agent.trajectory import Status, Trajectory
from nbrl.tasks.environments.own_world import CHECK_S, WorldSessions, made, reference_of
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.own import Question, Tasks, World
from nbrl.tasks.seeds import derive_seed
from nbrl.tasks.warmstart.demonstrators.play import DemonstratedQuestion, DemonstrationAgent, Move, play
from nbrl.tasks.warmstart.sources.source import Demonstrations, DemonstrationSource, whole


class OwnDemonstrations(DemonstrationSource):
    """Training questions of a class, played as its method `demonstrate` says, in sessions of their own if it is a world."""

    kind: Literal["own"] = Field(description="a class of your own demonstrates its training questions")
    place: str = Field(description="the class: package.module:Class", pattern=r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")
    settings: dict[str, Any] = Field(default_factory=dict, description="keyword arguments of the class")
    count: int = Field(512, ge=1, le=1_000_000, description="how many demonstrations; questions come again after the last")
    good: float = Field(0.0, ge=0, le=1, description="share of demonstrations that are right; the others show how to act only")

    def check(self) -> None:
        kind = type(made("demonstrations", self.place, self.settings))
        if kind.demonstrate is Tasks.demonstrate:
            raise ConfigError(f"demonstrations: {self.place} has no method demonstrate; write one, or take another source")

    def record(self, stage: DemonstrationAgent, seed: int) -> Demonstrations:
        tasks = made("demonstrations", self.place, self.settings)
        played = asyncio.run(self._record(tasks, stage, seed))
        # One that shows only how to act may have more steps than the agent, and ends as the agent's own would.
        acted, others = list[Trajectory](), list[Trajectory]()
        for each in played:
            limited = each.status is Status.STEP_LIMIT and not any(step.malformed for step in each.steps)
            (acted if limited else others).append(each)
        ended = whole(others, stage.tokenizer)
        return Demonstrations([*ended.trajectories, *acted], ended.left_out)

    async def _record(self, tasks: Tasks, stage: DemonstrationAgent, seed: int) -> list[Trajectory]:
        questions = list(tasks.questions("train"))
        trajectories = []
        for number in range(self.count):
            question, rng = questions[number % len(questions)], random.Random(f"own {seed} {number}")
            good = rng.random() < self.good
            shown = self._shown(tasks.demonstrate, question, rng, good)
            child = partial(self._shown, tasks.demonstrate_child, question=question, rng=rng, good=good)
            asked = DemonstratedQuestion(f"own-{number}", *_as_asked(question), child=child)
            trajectories.append(await self._play(tasks, question, asked, shown, stage, derive_seed(seed, number)))
        return trajectories

    def _shown(self, demonstrate: Callable[..., Any], *args: Any, **named: Any) -> Any:
        """Return the moves that a method of the class shows, or what a model says. Raises ConfigError."""
        try:
            moves = demonstrate(*args, **named)
            return moves if isinstance(moves, str) else [Move(think, code) for think, code in moves]
        except Exception as error:  # of a user's code
            name = getattr(demonstrate, "__name__", "demonstrate")
            raise ConfigError(f"demonstrations: {self.place}: {name}: {type(error).__name__}: {error}") from error

    async def _play(
        self,
        tasks: Tasks,
        question: Question,
        asked: DemonstratedQuestion,
        moves: Sequence[Move],
        stage: DemonstrationAgent,
        seed: int,
    ) -> Trajectory:
        if not isinstance(tasks, World):
            return await play(asked, moves, stage)
        of_session = Asked(asked.id, question.text, question.ability, stage.environment, reference_of(question))
        try:
            session = await GuardedSession.start(WorldSessions(tasks), of_session, seed, CHECK_S)
            try:
                opening = await session.observe()
                text = f"{asked.question}\n\n{opening}" if opening else asked.question
                here = replace(stage, tools=(*stage.tools, *session.tools), session=session)
                return await play(replace(asked, question=text), moves, here)
            finally:
                await session.close()
        except AgentError as error:
            raise ConfigError(f"demonstrations: {error}") from error


def _as_asked(question: Question) -> tuple[str, str, dict[str, str]]:
    """Return the question as an agent reads it, its ability, and its files that are texts, by name."""
    files = dict[str, str]()
    for each in question.files:
        name, data = (Path(each).name, Path(each).read_bytes()) if isinstance(each, str) else each
        files[name] = data.decode("utf-8", "replace")
    return with_files(question.text, files), question.ability, files
