"""Scores a trajectory by the outcome of its session, where a server or program that nbrl did not write says the reward."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from nbrl.tasks.errors import fault_in_words
from nbrl.tasks.reward.rules.judged import Judged, Paid, named_facets


class SessionOutcome(BaseModel):
    """What such a session returns: whether the task was done, its reward, or that of each step by its number, and metrics."""

    model_config = ConfigDict(extra="forbid", strict=True)

    success: bool
    reward: FiniteFloat
    steps: dict[Annotated[str, Field(pattern="^[0-9]{1,6}$")], Paid] = Field(default_factory=dict, max_length=100_000)
    metrics: dict[str, float] = Field(default_factory=dict)


def judge(outcome: str, steps: int) -> Judged:
    """Return the verdict on a trajectory of so many steps. `outcome` is JSON; one that cannot be used is a fault."""
    try:
        said = SessionOutcome.model_validate_json(outcome)
    except ValidationError as error:
        return Judged(0.0, 0.0, fault=f"the outcome of its session cannot be used: {fault_in_words(error)}"[:300])
    paid = [0.0] * steps if said.steps else []
    for number, reward in said.steps.items():
        if int(number) >= steps:
            return Judged(0.0, 0.0, fault=f"its session pays step {number}, and it has {steps} steps")
        paid[int(number)] = reward
    exact, value = float(said.success), min(1.0, max(0.0, said.reward))
    return Judged(exact, value, value, tuple(paid), named_facets(said.metrics))
