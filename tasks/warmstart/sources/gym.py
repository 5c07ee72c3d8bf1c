"""Demonstrations of how to act on tasks of reasoning-gym: calculations that are drawn at random."""

import asyncio
import importlib.util
import random
from typing import Any, Literal

from pydantic import Field

from nbrl.agent.trajectory import Trajectory
from nbrl.tasks.environments.kinds.gym import PACKAGE, GymEnvironment, check_tasks
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.warmstart.demonstrators.guesses import calculation, sums
from nbrl.tasks.warmstart.demonstrators.habits import script
from nbrl.tasks.warmstart.demonstrators.play import DemonstratedQuestion, DemonstrationAgent, play
from nbrl.tasks.warmstart.sources.source import Demonstrations, DemonstrationSource, whole
from nbrl.tasks.warmstart.sources.world import WORLDS_FROM

AT_ONCE = 500  # different sums are few


class GymDemonstrations(DemonstrationSource):
    """Questions of reasoning-gym's tasks, each answered with a calculation that is drawn at random."""

    kind: Literal["reasoning_gym"] = Field(
        description="how to act on tasks of reasoning-gym, with calculations that are drawn at random; needs the extra `gym`"
    )
    tasks: tuple[str, ...] = Field(min_length=1, description="names of tasks, for example gcd and count_bits")
    settings: dict[str, dict[str, Any]] = Field(default_factory=dict, description="name of a task: its own settings")
    count: int = Field(64, ge=1, le=100_000, description="how many demonstrations")

    def check(self) -> None:
        require_gym("reasoning_gym")
        check_tasks(self._environment(0), "demonstrations")

    def record(self, stage: DemonstrationAgent, seed: int) -> Demonstrations:
        return whole(asyncio.run(self._record(stage, WORLDS_FROM + seed)), stage.tokenizer)

    def _environment(self, seed: int) -> GymEnvironment:
        return GymEnvironment(
            kind="reasoning_gym", tasks=self.tasks, settings=self.settings, seed=seed, train=self.count, held_out=len(self.tasks)
        )

    async def _record(self, stage: DemonstrationAgent, seed: int) -> list[Trajectory]:
        rng, trajectories = random.Random(f"calculations {seed}"), []
        for row in self._environment(seed).drawn("demonstrations").train.to_pylist():
            question = DemonstratedQuestion(row["id"], row["question"], row["ability"])
            trajectories.append(await play(question, [calculation(row["question"], rng)], stage))
        return trajectories


def require_gym(kind: str) -> None:
    """Raises ConfigError without the package."""
    if importlib.util.find_spec(PACKAGE) is None:
        raise ConfigError(f"demonstrations of kind {kind} need the package reasoning-gym: pip install 'nbrl[gym]'")


class SumsDemonstrations(DemonstrationSource):
    """Sums of two numbers."""

    kind: Literal["sums"] = Field(description="sums of two numbers, done well and badly by scripts; needs the extra `gym`")
    count: int = Field(512, ge=1, le=1_000_000, description="how many demonstrations")
    good: float = Field(0.5, ge=0, le=1, description="share of the demonstrations that are right")

    def check(self) -> None:
        require_gym("sums")

    def record(self, stage: DemonstrationAgent, seed: int) -> Demonstrations:
        return whole(asyncio.run(self._record(stage, WORLDS_FROM + seed)), stage.tokenizer)

    async def _record(self, stage: DemonstrationAgent, seed: int) -> list[Trajectory]:
        rng, trajectories = random.Random(f"sums {seed}"), []
        for start in range(0, self.count, AT_ONCE):
            for problem in sums(seed + start, min(AT_ONCE, self.count - start)):
                question = DemonstratedQuestion(
                    f"{start}-{problem.question.id}", problem.question.question, problem.question.ability
                )
                trajectories.append(await play(question, script(problem, self.good, rng).moves, stage))
        return trajectories
