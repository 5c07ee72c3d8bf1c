"""The process group by which an engine of any kind takes weights from rank 0, and how they compare with what was sent."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Bucket:
    """Tensors that travel as one, their bytes one after the other. `dtype` is in torch's names, such as bfloat16."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtype: str


@dataclass(frozen=True)
class WeightGroup:
    """A group of `size` ranks that meets at the address and port of its rank 0. An engine has `rank` and the next, one for each
    GPU.
    """

    name: str
    address: str
    port: int
    backend: Literal["gloo", "nccl"]
    size: int
    rank: int


@dataclass(frozen=True)
class WeightComparison:
    """Parameters of the engine, by name: how many equal the files, which differ, and which were not compared. `why` is the reason
    why the engine could not compare, if it could not.
    """

    equal: int
    different: tuple[str, ...] = ()
    unproved: tuple[str, ...] = ()
    why: str = ""

    @classmethod
    def of(cls, ranks: Sequence[dict[str, Any]]) -> "WeightComparison":
        """Combine the answers of the engine's ranks: a parameter that differs on one of them differs."""
        different = {name for rank in ranks for name in rank["different"]}
        unproved = {name for rank in ranks for name in rank["unproved"]} - different
        return cls(
            equal=min(rank["equal"] for rank in ranks),
            different=tuple(sorted(different)),
            unproved=tuple(sorted(unproved)),
            why=next((rank["why"] for rank in ranks if rank["why"]), ""),
        )
