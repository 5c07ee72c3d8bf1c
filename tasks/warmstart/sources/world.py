"""Demonstrations in generated worlds, which no training has seen."""

import asyncio
import random
from dataclasses import replace
from typing import Literal

from pydantic import Field

from nbrl.agent.tools.corpus.corpus import Corpus, SearchTool
from nbrl.agent.trajectory import Trajectory
from nbrl.infra.closed import acts_if
from nbrl.tasks.environments.world.world import ABILITIES, Ability, Problem, World
from nbrl.tasks.warmstart.demonstrators.guesses import GuessingPolicy
from nbrl.tasks.warmstart.demonstrators.habits import script
from nbrl.tasks.warmstart.demonstrators.play import DemonstratedQuestion, DemonstrationAgent, act, play
from nbrl.tasks.warmstart.sources.source import Demonstrations, DemonstrationSource, whole

PER_WORLD = 500  # questions; many worlds, so that who is whose is never worth knowing by heart
# Far from the small seeds that runs take, so that their worlds are new to the policy.
WORLDS_FROM = 1_000_000_000


class WorldDemonstrations(DemonstrationSource):
    """Questions about generated worlds."""

    kind: Literal["world"] = Field(description="questions about generated worlds, done well and badly by scripts")
    count: int = Field(512, ge=1, le=1_000_000, description="how many demonstrations")
    abilities: tuple[Ability, ...] = Field(ABILITIES, min_length=1, description="what the questions need, in turns")
    show: Literal["habits", "guesses"] = Field(
        "habits",
        description="habits: right answers and, in the other trajectories, bad habits that announce themselves; guesses: how to "
        "act and to call only, with answers that are drawn at random",
    )
    good: float = Field(
        0.5,
        ge=0,
        le=1,
        description="share of the demonstrations that are right",
        json_schema_extra=acts_if("show", "habits"),
    )

    def record(self, stage: DemonstrationAgent, seed: int) -> Demonstrations:
        return whole(asyncio.run(self._record(stage, WORLDS_FROM + seed)), stage.tokenizer)

    async def _record(self, stage: DemonstrationAgent, seed: int) -> list[Trajectory]:
        trajectories = []
        for start in range(0, self.count, PER_WORLD):
            world = World.generate(seed + start, "train", min(PER_WORLD, self.count - start), self.abilities)
            rng = random.Random(f"demonstrations {seed + start}")
            search = SearchTool(Corpus.in_memory(world.corpus))
            tools = tuple(search if tool.name == search.name else tool for tool in stage.tools)
            here = replace(stage, tools=tools if search in tools else (search, *tools))
            trajectories += [await self._one(problem, here, rng) for problem in world.problems]
        return trajectories

    async def _one(self, problem: Problem, stage: DemonstrationAgent, rng: random.Random) -> Trajectory:
        question = DemonstratedQuestion(problem.question.id, problem.question.question, problem.question.ability)
        if self.show == "habits":
            return await play(question, script(problem, self.good, rng).moves, stage)
        queries = problem.queries[: rng.randint(0, min(len(problem.queries), stage.agent.max_steps - 1))]
        return await act(question, GuessingPolicy(queries, rng, stage.agent, stage.tokenizer), stage)
