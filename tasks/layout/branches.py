"""Names of branches: continuations of another trajectory of their group from one of its steps on."""

import re
from typing import NamedTuple

NAME = re.compile(r"(.+-\d+)-b(\d+)\.(\d+)")  # no other trajectory is named so: their names end with a dash and a number


class BranchName(NamedTuple):
    """The name of the `number`-th continuation of the trajectory `origin` from its step `step` on, with its steps before."""

    origin: str
    step: int
    number: int

    @property
    def id(self) -> str:
        return f"{self.origin}-b{self.step}.{self.number}"


def branch_of(trajectory: str) -> BranchName | None:
    """Return what the name of a trajectory says, if it is a branch."""
    found = NAME.fullmatch(trajectory)
    return BranchName(found[1], int(found[2]), int(found[3])) if found else None


def own_steps_from(trajectory: str) -> int:
    """Return the first step of a trajectory that it sampled itself."""
    branch = branch_of(trajectory)
    return branch.step if branch else 0
