"""The state of a round in the queue of its rows, and what the queue answers of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from nbrl.tasks.rollout.plan import EngineAddress

Row = dict[str, Any]


class Assignment(NamedTuple):
    """The answer to a runner: `rows` to run, whether `more` may come, and the engines' places; or the round is `over`."""

    rows: list[Row]
    more: bool
    engines: Sequence[EngineAddress]
    over: bool = False


class QueueStatus(NamedTuple):
    """The state of a round. `doubtful` rows may be on storage already; where there are some, `known` chunks are accounted for.

    `living` runners, of which the newest sign comes first, `silent` ones that were not reported before, and the number of
    `restarts` since the last look.
    """

    finished: int
    doubtful: tuple[str, ...]
    known: frozenset[str]
    living: tuple[int, ...]
    silent: tuple[int, ...]
    restarts: int


@dataclass
class QueuedRound:
    """A round of `count` rows, or without a number one that goes on and on: those that came, by id; each is waiting, held by a
    runner, doubtful or finished.

    A trajectory with more than `mixed` updates in its middle, if that is a number, does not count: its row is run again. With
    `resumed`, what an earlier process left is on storage, so that rows are doubtful as they come. While it is `paused`,
    runners get no row.
    """

    name: str
    count: int | None
    engines: Sequence[EngineAddress]
    resumed: bool
    mixed: int | None = None
    rows: dict[str, Row] = field(default_factory=dict)
    waiting: list[str] = field(default_factory=list)
    doubtful: list[str] = field(default_factory=list)
    held: dict[int, set[str]] = field(default_factory=dict)
    finished: set[str] = field(default_factory=set)
    parts: set[str] = field(default_factory=set)  # keys of the chunks in `found`
    found: list[pa.Table] = field(default_factory=list)  # rows of the index
    paused: bool = False

    @property
    def over(self) -> bool:
        return len(self.finished) == self.count

    @property
    def outstanding(self) -> int:
        """Return how many rows are not finished, as far as is known."""
        return len(self.rows.keys() - self.finished) if self.count is None else self.count - len(self.finished)
