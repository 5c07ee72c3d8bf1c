"""What the sources of demonstrations have in common."""

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from nbrl.agent.trajectory import Trajectory
from nbrl.tasks.warmstart.demonstrators.play import Stage


@dataclass(frozen=True)
class Found:
    """Demonstrations, and how many others could not be used."""

    trajectories: list[Trajectory]
    left_out: int = 0


class Source(BaseModel):
    """Gives trajectories whose every sampled action is learnt."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    def check(self) -> None:
        """Raises ConfigError if it cannot be had; cheap."""

    def record(self, stage: Stage, seed: int) -> Found:
        """The demonstrations, deterministic in the arguments but for times. Raises ConfigError if they cannot be had."""
        raise NotImplementedError
