"""How many trajectories, where, and how often an infrastructure fault is forgiven."""

from pydantic import BaseModel, ConfigDict, Field

from agent.tools.settings import ToolSettings


class RolloutSettings(BaseModel):
    """`prompts` × `group_size` trajectories a round, over `hosts` sandbox actors with `episodes_per_host` episodes at once."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    prompts: int = Field(64, ge=1)
    group_size: int = Field(4, ge=1)
    hosts: int = Field(1, ge=1, le=1024)
    episodes_per_host: int = Field(8, ge=1, le=4096)
    attempts: int = Field(3, ge=1, le=20, description="tries of a trajectory, each in a fresh kernel, before it counts as failed")
    tools: ToolSettings = ToolSettings()
