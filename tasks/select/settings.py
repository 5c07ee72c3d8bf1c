"""Which groups an update learns from."""

from pydantic import BaseModel, ConfigDict, Field


class SelectSettings(BaseModel):
    """A group whose trajectories are all right or all wrong is dropped with probability `drop_rate`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    drop_rate: float = Field(0.5, ge=0, le=1)
    max_rounds: int = Field(3, ge=1, le=20, description="rounds of fresh prompts until the batch is full")
