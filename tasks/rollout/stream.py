"""Which groups of a stream are in flight, and which of them fill a batch: pure functions of what was recorded and what finished.

A group is named by its position in the run's order of prompts. Between two batches so many are in flight that with the next one
none is older than the lag: a group is begun when a batch is admitted, and until it is admitted itself as many batches pass as are
in flight.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import pyarrow as pa

from nbrl.agent.trajectory import Status

IN_FLIGHT_SCHEMA = pa.schema([("position", pa.int64()), ("updates", pa.int64())])


class GroupInFlight(NamedTuple):
    """A group at a position of the order of prompts, which was begun with the weights after `updates` updates."""

    position: int
    updates: int


class StreamRule(NamedTuple):
    """The settings of a stream: groups of a batch and in flight, `admit` and `lag` of the pipeline, and how many updates may come
    in the middle of a trajectory, None for any number.
    """

    batch: int
    in_flight: int
    admit: str
    lag: int
    mixed: int | None = None

    def first(self) -> list[GroupInFlight]:
        """Return the groups with which a run begins."""
        return [GroupInFlight(position, 0) for position in range(self.in_flight)]

    def due(self, groups: Sequence[GroupInFlight], turn: int) -> list[int]:
        """Return the positions that batch number `turn`, from 0, must have: in order those up to its own; by quota those that
        were begun, a batch of them at a time, `lag` batches before.
        """
        if self.admit == "finish":
            return []
        if self.admit == "order":
            return [group.position for group in groups if group.position // self.batch <= turn]
        return [each.position for each in groups if (each.position - self.in_flight) // self.batch + self.lag <= turn]

    def usable(self, finished: Mapping[int, int], updates: int) -> list[int]:
        """Return the finished positions that are not older than the lag."""
        return [position for position, oldest in finished.items() if updates - oldest <= self.lag]

    def admitted(self, groups: Sequence[GroupInFlight], finished: Mapping[int, int], turn: int, updates: int) -> list[int] | None:
        """Return the positions that batch number `turn` has, in order; None while more have to finish.

        `finished` has the positions of the finished groups of `groups`, the first to finish first, with the oldest weights that
        sampled any of their actions. Those older than the lag are in the batch beside the others, so that they are recorded.
        """
        usable = self.usable(finished, updates)
        old = finished.keys() - usable
        due = self.due(groups, turn)
        if not set(due) <= finished.keys() or len(usable) < self.batch:
            return None
        first = [position for position in usable if position in due]
        rest = [position for position in usable if position not in due]
        return sorted([*old, *(first + rest)[: self.batch]])

    def refilled(
        self, groups: Sequence[GroupInFlight], admitted: Collection[int], cursor: int, updates: int
    ) -> list[GroupInFlight]:
        """Return the groups in flight after a batch was admitted; new ones begin at `cursor` with weights after `updates`.

        Those that will be too old for the next batch hold no place: they end some time, and are only recorded.
        """
        left = [group for group in groups if group.position not in admitted]
        young = sum(updates + 1 - group.updates <= self.lag for group in left)
        return [*left, *(GroupInFlight(cursor + number, updates) for number in range(self.in_flight - young))]


def consecutive(positions: Iterable[int]) -> list[tuple[int, int]]:
    """Return positions as runs of consecutive ones: the first of each, and how many they are."""
    runs = list[tuple[int, int]]()
    for position in positions:
        first, count = runs[-1] if runs else (position, 0)
        runs[-1:] = [(first, count + 1)] if position == first + count else [(first, count), (position, 1)]
    return runs


def table_of(groups: Sequence[GroupInFlight]) -> pa.Table:
    """Return rows of IN_FLIGHT_SCHEMA."""
    return pa.Table.from_pylist([group._asdict() for group in groups], schema=IN_FLIGHT_SCHEMA)


def groups_in(table: pa.Table) -> list[GroupInFlight]:
    """Return the groups of rows of IN_FLIGHT_SCHEMA."""
    return [GroupInFlight(**row) for row in table.to_pylist()]


def within(index: pa.Table, mixed: int | None) -> pa.Table:
    """Return the rows of an index whose trajectories have at most `mixed` updates between the oldest and the newest weights that
    sampled them; all of them for None.
    """
    return index.filter(pa.array([_fits(each, mixed) for each in index["versions"].to_pylist()], pa.bool_()))


def usable_attempts(index: pa.Table, mixed: int | None, admitted: Mapping[str, str]) -> pa.Table:
    """Return the rows of an index that are not run again: those of `within` that did not fail, and what was `admitted`, by
    trajectory and part.
    """
    rows = index.select(["id", "part", "status", "versions"]).to_pylist()
    usable = [
        admitted.get(row["id"]) == row["part"] or (row["status"] != Status.FAILED and _fits(row["versions"], mixed))
        for row in rows
    ]
    return index.filter(pa.array(usable, pa.bool_()))


def _fits(versions: Sequence[str], mixed: int | None) -> bool:
    return mixed is None or updates_within(versions) <= mixed


def updates_within(versions: Sequence[str]) -> int:
    """Return how many updates came in the middle of a trajectory that these weights sampled."""
    ages = [int(version) for version in versions]
    return max(ages, default=0) - min(ages, default=0)


def stream_ages(index: pa.Table, updates: int) -> dict[str, float]:
    """Return mean age and shares by age of the sampled tokens, and the share of trajectories that several weights sampled.

    `index` has the column `tokens`, see `copied`.
    """
    tokens: dict[int, int] = {}
    pairs = list(zip(index["versions"].to_pylist(), index["tokens"].to_pylist(), strict=True))
    for versions, counts in pairs:
        for version, count in zip(versions, counts, strict=True):
            tokens[updates - int(version)] = tokens.get(updates - int(version), 0) + count
    mixed = {"pipeline/mixed": sum(len(versions) > 1 for versions, _ in pairs) / max(1, len(pairs))}
    return mixed | age_shares(tokens)


def age_shares(tokens: Mapping[int, int]) -> dict[str, float]:
    """Return mean age and shares by age, of tokens by age in updates."""
    if not (of_all := sum(tokens.values())):
        return {}
    mean = sum(age * count for age, count in tokens.items()) / of_all
    return {"pipeline/staleness": mean} | {f"pipeline/staleness/{age}": count / of_all for age, count in sorted(tokens.items())}
