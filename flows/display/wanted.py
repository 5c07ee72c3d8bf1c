"""What is listed of trajectories, and which. It imports no tables, which a command needs after its options were checked."""

from dataclasses import dataclass

from nbrl.tasks.layout.runs import place_of, stage_of


@dataclass(frozen=True)
class ListedTrajectory:
    """A trajectory without its steps. `reward` and `success` are None where it was not scored."""

    key: str
    id: str
    group: str
    status: str
    answer: str | None
    question: str
    ability: str
    environment: str
    steps: int
    reward: float | None
    success: float | None

    @property
    def where(self) -> str:
        return place_of(self.key)


@dataclass(frozen=True)
class Wanted:
    """A filter of listed trajectories; an empty value matches all. `iteration` counts from 1, `updates` is of an evaluation.

    `best` and `worst` want so many with the highest or lowest rewards, the extreme one first.
    """

    status: str = ""
    ability: str = ""
    environment: str = ""
    iteration: int | None = None
    updates: int | None = None
    held_out: bool = False
    best: int | None = None
    worst: int | None = None

    def fits(self, found: ListedTrajectory) -> bool:
        return all(getattr(self, name) in ("", getattr(found, name)) for name in ("status", "ability", "environment"))

    def fits_place(self, key: str) -> bool:
        """Return whether its table of trajectories is wanted; those of an evaluation outside any run are held out."""
        stage = stage_of(key)
        if self.iteration is not None:
            return stage == (False, self.iteration)
        if self.updates is not None:
            return stage == (True, self.updates)
        return not self.held_out or stage is None or stage[0]
