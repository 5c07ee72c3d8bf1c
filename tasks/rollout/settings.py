"""Settings of rollouts: number and place of the trajectories, and attempts after an infrastructure fault."""

from itertools import pairwise
from typing import Literal

from pydantic import Field, model_validator

from nbrl.agent.tools.settings import ToolSettings
from nbrl.infra.closed import FREE, ClosedModel, acts_if
from nbrl.infra.placement import Resources


class HorizonSettings(ClosedModel):
    """A curriculum of the number of steps that training episodes may take (ScalingInter-RL, arXiv 2509.08755): iteration t has
    steps[min(t // every, last)]. Evaluations have agent.max_steps.
    """

    steps: tuple[int, ...] = Field(min_length=2, description="agent.max_steps of each phase, rising, such as [2, 4, 8]")
    every: int = Field(ge=1, description="iterations of a phase; the last one lasts until the end")

    @model_validator(mode="after")
    def _rises(self) -> "HorizonSettings":
        if self.steps[0] < 1 or any(later <= earlier for earlier, later in pairwise(self.steps)):
            raise ValueError(f"steps must rise from 1 or more, not {list(self.steps)}")
        return self

    def at(self, iteration: int) -> int:
        """Return the steps that episodes of an iteration, counted from 0, may take."""
        return self.steps[min(iteration // self.every, len(self.steps) - 1)]


class BranchSettings(ClosedModel):
    """Continuations of a group's trajectories from the middle: a clean kernel runs their cells again, with the answers that their
    tools gave, and where every output is the recorded one the policy goes on from there.
    """

    at: Literal["uniform", "entropy", "last_error"] = Field(
        "uniform",
        description="steps that are taken up again: uniform: any; entropy: those whose actions were the least likely; "
        "last_error: those whose cell was the last of their trajectory to fail",
    )
    points: int = Field(2, ge=1, le=64, description="steps of a group that are taken up again")
    width: int = Field(3, ge=1, le=64, description="continuations of each")


class RolloutSettings(ClosedModel):
    """`prompts` × `group_size` trajectories per round, over `runners` Ray actors with `episodes_per_runner` episodes at once."""

    prompts: int = Field(64, ge=1, description="questions per round; where there are fewer, each is asked as often as it takes")
    group_size: int = Field(4, ge=1, description="trajectories per question, which are compared with each other")
    runners: int = Field(1, ge=1, le=1024, description="Ray actors that run episodes in sandboxes", json_schema_extra=FREE)
    resources: Resources = Field(
        {},
        description="resources of the Ray cluster that one runner takes, such as {sandbox: 1}: it is placed where they are",
        json_schema_extra=FREE | acts_if("ray.address"),
    )
    episodes_per_runner: int = Field(
        8,
        ge=1,
        le=4096,
        description="concurrent episodes on each runner; each holds a kernel",
        json_schema_extra=FREE,
    )
    attempts: int = Field(
        3,
        ge=1,
        le=20,
        description="attempts at a trajectory, each in a fresh kernel, before it counts as failed",
        json_schema_extra=FREE,
    )
    failed_share: float = Field(
        0.05,
        ge=0,
        lt=1,
        description="share of a round's trajectories, rounded up to a whole one, that may fail for the infrastructure; where "
        "more do, none is scored: training starts its services again, an evaluation stops, and both keep what was finished",
        json_schema_extra=FREE,
    )
    horizon: HorizonSettings | None = None
    branch: BranchSettings | None = None
    tools: ToolSettings = ToolSettings()
