"""Demonstrations of sums, which are made."""

import asyncio
import random
from typing import Literal

from pydantic import Field

from nbrl.agent.trajectory import Trajectory
from nbrl.tasks.warmstart.demonstrators.guesses import sums
from nbrl.tasks.warmstart.demonstrators.habits import script
from nbrl.tasks.warmstart.demonstrators.play import Asked, Stage, play
from nbrl.tasks.warmstart.sources.gym import require_gym
from nbrl.tasks.warmstart.sources.source import Found, Source, whole
from nbrl.tasks.warmstart.sources.world import WORLDS_FROM

AT_ONCE = 500  # different sums are few


class SumsDemonstrations(Source):
    """Sums of two numbers."""

    kind: Literal["sums"] = Field(description="sums of two numbers, done well and badly by scripts; needs the extra `gym`")
    count: int = Field(512, ge=1, le=1_000_000, description="how many demonstrations")
    good: float = Field(0.5, ge=0, le=1, description="share of the demonstrations that are right")

    def check(self) -> None:
        require_gym("sums")

    def record(self, stage: Stage, seed: int) -> Found:
        return whole(asyncio.run(self._record(stage, WORLDS_FROM + seed)), stage.tokenizer)

    async def _record(self, stage: Stage, seed: int) -> list[Trajectory]:
        rng, found = random.Random(f"sums {seed}"), []
        for start in range(0, self.count, AT_ONCE):
            for problem in sums(seed + start, min(AT_ONCE, self.count - start)):
                asked = Asked(f"{start}-{problem.question.id}", problem.question.question, problem.question.ability)
                found.append(await play(asked, script(problem, self.good, rng).moves, stage))
        return found
