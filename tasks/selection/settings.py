"""The selection of questions to ask, and of groups from which an update learns."""

from typing import Literal, Self

from pydantic import Field, model_validator

from nbrl.infra.closed import FREE, ClosedModel, FiniteModel

Pool = Literal["learnable", "unseen", "hard", "easy"]
POOLS: tuple[Pool, ...] = ("learnable", "unseen", "hard", "easy")


class PoolSettings(FiniteModel):
    """Questions are drawn from pools by the share of their last group that was right; each pool has turns by its weight."""

    learnable: float = Field(4.0, ge=0, description="weight of the questions that were right now and then")
    unseen: float = Field(3.0, ge=0, description="weight of those that were not asked yet")
    hard: float = Field(1.0, ge=0, description="weight of those that were hardly ever right")
    easy: float = Field(1.0, ge=0, description="weight of those that were nearly always right")
    hard_to: float = Field(0.0, ge=0, lt=1, description="a question is hard if this share of its last group was right, or less")
    easy_from: float = Field(1.0, gt=0, le=1, description="and easy if this share was right, or more")

    @property
    def weights(self) -> dict[Pool, float]:
        return {pool: getattr(self, pool) for pool in POOLS}

    @model_validator(mode="after")
    def _drawn(self) -> Self:
        if self.hard_to >= self.easy_from:
            raise ValueError(f"hard_to is {self.hard_to:g} and easy_from {self.easy_from:g}; set it below easy_from")
        if not any(self.weights.values()):
            raise ValueError("learnable, unseen, hard and easy are all 0, so that nothing can be drawn; raise one of them")
        return self


class SelectSettings(ClosedModel):
    """A group whose trajectories are all right or all wrong is dropped with probability `drop_rate`."""

    drop_rate: float = Field(0.5, ge=0, le=1, description="probability that a group without signal is dropped")
    resample_to: int | None = Field(
        None,
        ge=2,
        description="of the trajectories of a kept group so many are learned from: the right ones with the fewest failed cells "
        "and malformed steps, and a share of the wrong ones by chance (GRPO-RoC); all when not set",
    )
    retire_at: float | None = Field(
        None,
        gt=0,
        le=1,
        description="a question that this share of its group, or more, answered right is not asked again "
        "(no-positive-resampling of ScaleRL); all are asked again when not set",
    )
    pools: PoolSettings | None = None
    max_rounds: int = Field(3, ge=1, le=20, description="rounds of fresh prompts until the batch is full")
    patience: int = Field(
        5,
        ge=1,
        description="iterations in a row without a group that has signal, after which the run ends",
        json_schema_extra=FREE,
    )
