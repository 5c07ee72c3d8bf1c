"""The selection of groups from which an update learns."""

from pydantic import Field

from nbrl.infra.closed import FREE, ClosedModel


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
    max_rounds: int = Field(3, ge=1, le=20, description="rounds of fresh prompts until the batch is full")
    patience: int = Field(
        5,
        ge=1,
        description="iterations in a row without a group that has signal, after which the run ends",
        json_schema_extra=FREE,
    )
