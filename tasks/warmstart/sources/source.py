"""The base of the sources of demonstrations."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from nbrl.agent.tokens.tokenizer import ChatTokenizer
from nbrl.agent.trajectory import Status, Trajectory
from nbrl.infra.closed import FiniteModel
from nbrl.tasks.warmstart.demonstrators.play import DemonstrationAgent


@dataclass(frozen=True)
class Demonstrations:
    """Demonstrations, and how many others could not be used."""

    trajectories: list[Trajectory]
    left_out: int = 0


def whole(played: Sequence[Trajectory], tokenizer: ChatTokenizer) -> Demonstrations:
    """Return those that no limit of the agent cut off: they came to an end, and each of their actions to its own."""
    ended = [each for each in played if each.status in (Status.ANSWERED, Status.DONE)]
    kept = [each for each in ended if all(node.token_ids[-1:] == [tokenizer.end_id] for node in each.sampled())]
    return Demonstrations(kept, len(played) - len(kept))


class DemonstrationSource(FiniteModel):
    """Gives trajectories whose every sampled action is learnt."""

    environment: str | None = Field(
        None,
        description="the training's environment whose tools and addition to the system prompt the demonstrators get; when "
        "not set, the only one that it has, and of several none",
    )

    def check(self) -> None:
        """Raises ConfigError if it cannot be had, or holds something else; plays nothing."""

    def files(self) -> dict[str, Path]:
        """Return the files that it reads, by their paths or addresses. Raises ConfigError if they are not there."""
        return {}

    def record(self, stage: DemonstrationAgent, seed: int) -> Demonstrations:
        """Return the demonstrations, deterministic in the arguments but for times. Raises ConfigError if they cannot be had."""
        raise NotImplementedError
