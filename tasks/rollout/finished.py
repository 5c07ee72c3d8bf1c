"""What has finished of the groups of a stream, until a batch has it."""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import pyarrow as pa

from nbrl.tasks.rollout.chunks import SCHEMA

Attempts = list[dict[str, Any]]  # rows of the index


class FinishedGroups:
    """The index of the finished trajectories of a stream, by group. `oldest` and `table` look at whole groups only.

    Of a trajectory that several attempts finished, because a runner gave no sign for long, the first counts.
    """

    def __init__(self, group_size: int) -> None:
        self._size, self._rows, self._changed = group_size, dict[str, dict[str, Attempts]](), asyncio.Event()

    def note(self, index: pa.Table) -> None:
        """Add trajectories that have finished."""
        for row in index.to_pylist():
            self._rows.setdefault(group_of(row["id"]), {}).setdefault(row["id"], []).append(row)
        self._changed.set()
        self._changed = asyncio.Event()

    async def more(self) -> None:
        """Return when more have finished."""
        await self._changed.wait()

    def oldest(self, groups: Collection[str], updates: int) -> dict[str, int]:
        """Return which of these groups are whole, the first to finish first, with the number of the oldest weights that sampled
        an action of theirs; `updates` where they have no action.
        """
        whole = [(self._ended(group), group) for group in groups if len(self._rows.get(group, ())) == self._size]
        return {group: self._oldest(group, updates) for _, group in sorted(whole)}

    def table(self, names: Iterable[str]) -> pa.Table:
        """Return the index of trajectories, in the order of their names. Raises KeyError if one has not finished."""
        return pa.Table.from_pylist([self._rows[group_of(name)][name][0] for name in names], schema=SCHEMA)

    def choose(self, parts: Mapping[str, str]) -> None:
        """Let the attempt in this part count for each of these trajectories, where it is there."""
        for name, part in parts.items():
            self._rows.get(group_of(name), {}).get(name, []).sort(key=lambda row: row["part"] != part)

    def __contains__(self, name: str) -> bool:
        """Return whether a trajectory has finished."""
        return name in self._rows.get(group_of(name), ())

    def keep(self, groups: Collection[str]) -> list[str]:
        """Forget all but these groups; return the parts in which nothing of them lies."""
        parts = self._parts()
        self._rows = {group: self._rows[group] for group in groups if group in self._rows}
        return sorted(parts - self._parts())

    def _parts(self) -> set[str]:
        return {row["part"] for rows in self._rows.values() for attempts in rows.values() for row in attempts}

    def _ended(self, group: str) -> float:
        return max(float(attempts[0]["started_at"] + attempts[0]["seconds"]) for attempts in self._rows[group].values())

    def _oldest(self, group: str, updates: int) -> int:
        versions = [int(version) for attempts in self._rows[group].values() for version in attempts[0]["versions"]]
        return min(versions, default=updates)


def group_of(name: str) -> str:
    """Return the group of a trajectory."""
    return name.rpartition("-")[0]
