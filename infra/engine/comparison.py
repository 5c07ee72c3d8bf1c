"""What an engine answered when its weights were compared with files."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Comparison:
    """Parameters of the engine, by name: how many equal the files, which differ, and of which nothing is known.

    `why` says what kept the engine from comparing, if anything did.
    """

    equal: int
    different: tuple[str, ...] = ()
    unproved: tuple[str, ...] = ()
    why: str = ""

    @classmethod
    def of(cls, ranks: Sequence[dict[str, Any]]) -> "Comparison":
        """Of what each rank of the engine answered: a parameter that differs on one of them differs."""
        different = {name for rank in ranks for name in rank["different"]}
        unproved = {name for rank in ranks for name in rank["unproved"]} - different
        return cls(
            equal=min(rank["equal"] for rank in ranks),
            different=tuple(sorted(different)),
            unproved=tuple(sorted(unproved)),
            why=next((rank["why"] for rank in ranks if rank["why"]), ""),
        )
