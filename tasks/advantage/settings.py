"""Which estimator turns step rewards into step advantages."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

GROUP_RELATIVE = ("grpo", "rloo")


class AdvantageSettings(BaseModel):
    """`gamma` discounts the step returns of reinforce_pp; the group-relative estimators score whole trajectories."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    estimator: Literal["reinforce_pp", "grpo", "rloo"] = "reinforce_pp"
    gamma: float = Field(0.95, gt=0, le=1)
