"""The queue of a round: assigns its rows to runners, a few at a time, and notes what is finished.

An actor on the machine that leads. It never waits for a runner: one that gives no sign loses its rows to others.
"""

import asyncio
import math
import time
from collections.abc import Callable, Sequence

import pyarrow as pa

from nbrl.agent.trajectory import Status
from nbrl.tasks.rollout.chunks import SCHEMA, finished_of
from nbrl.tasks.rollout.plan import EngineAddress
from nbrl.tasks.rollout.queued_round import Assignment, QueuedRound, QueueStatus, Row
from nbrl.tasks.rollout.stream import within

SIGN_S = 2.0  # a runner asks at least so often, with work or without
SILENT_S = 30.0  # without a sign a runner counts as gone, long before Ray finds that out


class WorkQueue:
    """All methods are asynchronous, and none is interrupted by another but where it waits."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._round = QueuedRound("", 0, [], False)
        self._changed = asyncio.Event()
        self._lives: dict[int, str] = {}
        self._signs: dict[int, float] = {}
        self._silent: set[int] = set()
        self._told: set[int] = set()
        self._restarts = 0

    async def open(
        self, name: str, count: int | None, engines: Sequence[EngineAddress], resumed: bool, mixed: int | None = None
    ) -> None:
        """Begin a round in place of the one before. With `resumed`, chunks are there, which are looked through first."""
        self._round = QueuedRound(name, count, engines, resumed, mixed)
        self._signs = dict.fromkeys(self._signs.keys() - self._silent, self._clock())
        self._change()

    async def add(self, name: str, rows: Sequence[Row]) -> None:
        """Put rows of the round into the queue; those that it has already change nothing."""
        if (current := self._round).name != name:
            return
        new = {row["id"]: row for row in rows if row["id"] not in current.rows}
        current.rows |= new
        (current.doubtful if current.resumed else current.waiting).extend(new)
        self._change()

    async def move(self, engines: Sequence[EngineAddress]) -> None:
        """Give runners other addresses of engines from now on."""
        self._round.engines = engines
        self._change()

    async def register_runner(self, number: int, life: str) -> None:
        """Note that a runner was started. After a restart, rows assigned to it become unassigned."""
        if number in self._lives and self._lives[number] != life:
            self._restarts += 1
            self._doubt(number)
        self._lives[number] = life
        self._sign(number)

    async def begin(self, name: str, number: int, life: str) -> None:
        """Start or restart a runner's work on this round; release its rows."""
        if self._round.name == name and self._is_present(number, life):
            self._sign(number)
            self._doubt(number)

    async def take(self, name: str, number: int, life: str, free: int) -> Assignment:
        """Return up to `free` rows for a runner, at most its fair share; waits for some for SIGN_S."""
        until = self._clock() + SIGN_S
        while True:
            current = self._round
            if not self._is_present(number, life):
                return Assignment([], False, current.engines, over=True)
            self._sign(number)
            if current.name != name or current.over:
                return Assignment([], False, current.engines, over=True)
            rows, left = self._share(number, free), until - self._clock()
            if rows or left <= 0 or not free:
                return Assignment(rows, bool(current.waiting or current.doubtful), current.engines)
            try:
                async with asyncio.timeout(left):
                    await self._changed.wait()
            except TimeoutError:
                pass

    async def finish(self, name: str, number: int, life: str, index: pa.Table) -> set[str]:
        """Take the rows of a chunk that a runner wrote. Rows that another runner finished before are skipped, and so are rows
        that failed or ran out of time after they were taken from this one, perhaps because its network was away. Returns the ids
        that were skipped and are not finished.
        """
        if self._round.name != name:
            return set()
        held = set[str]()
        if self._is_present(number, life):
            self._sign(number)
            held = self._round.held.get(number, held)
        pairs = zip(index["id"].to_pylist(), index["status"].to_pylist(), strict=True)
        counts = [each in held or status not in (Status.FAILED, Status.TIMEOUT) for each, status in pairs]
        if self._round.count is None:  # whose news name chunks of what is finished already too, so that those are deleted
            again = [each not in self._round.rows or each in self._round.finished for each in index["id"].to_pylist()]
            self._round.found += [index.filter(pa.array(again, pa.bool_()))] if any(again) else []
        self._note(index.filter(pa.array(counts, pa.bool_())))
        skipped = set(index["id"].to_pylist()) - self._round.finished
        if back := sorted(held & skipped):
            held -= skipped
            self._round.waiting[:0] = back
            self._change()
        return skipped

    async def settle(self, name: str, ids: Sequence[str], index: pa.Table) -> None:
        """Settle doubtful rows by what was found on storage; the others are run."""
        if (current := self._round).name != name:
            return
        self._note(finished_of(index, ids))
        settled = set(ids)
        current.waiting[:0] = [each for each in current.doubtful if each in settled]
        current.doubtful = [each for each in current.doubtful if each not in settled]
        self._change()

    async def look(self) -> QueueStatus:
        now, current = self._clock(), self._round
        if not current.over:
            self._silent |= {number for number, sign in self._signs.items() if now - sign > SILENT_S}
            if self._signs.keys() - self._silent:  # else no runner could run them
                for number in self._silent:
                    self._doubt(number)
        new = self._silent - self._told
        if new:
            self._told |= new
            self._change()  # the shares of the others have grown
        restarts, self._restarts = self._restarts, 0
        known = frozenset(current.parts if current.doubtful else ())
        living = tuple(sorted(self._signs.keys() - self._silent, key=lambda number: -self._signs[number]))
        return QueueStatus(len(current.finished), tuple(current.doubtful), known, living, tuple(sorted(new)), restarts)

    async def completed(self, name: str) -> None:
        """Return when the round is over, or another one has begun."""
        while self._round.name == name and not self._round.over:
            await self._changed.wait()

    async def news(self, name: str) -> pa.Table:
        """Return the rows of the index of what finished since the last call, also a second time, and forget them; waits for some
        for SIGN_S.
        """
        until = self._clock() + SIGN_S
        while self._round.name == name and not self._round.found and (left := until - self._clock()) > 0:
            try:
                async with asyncio.timeout(left):
                    await self._changed.wait()
            except TimeoutError:
                pass
        if (current := self._round).name != name:
            return SCHEMA.empty_table()
        found, current.found = pa.concat_tables([SCHEMA.empty_table(), *current.found]), []
        for each in found["id"].to_pylist():
            current.rows.pop(each, None)
        current.finished, current.parts = set(), set()
        return found

    async def pause(self, name: str) -> bool:
        """Let runners have no further row of this round; return whether they have none, for which it waits for SIGN_S."""
        until = self._clock() + SIGN_S
        self._round.paused = self._round.name == name
        while (busy := self._round.paused and any(self._round.held.values())) and (left := until - self._clock()) > 0:
            try:
                async with asyncio.timeout(left):
                    await self._changed.wait()
            except TimeoutError:
                pass
        return not busy

    async def resume(self, name: str) -> None:
        """Let runners have rows again."""
        if self._round.name == name and self._round.paused:
            self._round.paused = False
            self._change()

    async def index(self, name: str, ids: Sequence[str]) -> pa.Table:
        """Return the index of the finished ones of these rows, in their order; of another round than this one it is empty."""
        found = pa.concat_tables([SCHEMA.empty_table(), *(self._round.found if self._round.name == name else ())])
        places = {each: place for place, each in enumerate(found["id"].to_pylist())}
        return found.take(pa.array([places[each] for each in ids if each in places], pa.int64()))

    def _share(self, number: int, free: int) -> list[Row]:
        """Return rows for a runner, which then holds them: as many as it has room for, but no more than other living ones get."""
        current, held = self._round, self._round.held.setdefault(number, set())
        living = max(1, len(self._signs.keys() - self._silent))
        count = max(0, min(free, len(current.waiting), math.ceil(current.outstanding / living) - len(held)))
        if current.paused:
            count = 0
        ids, current.waiting = current.waiting[:count], current.waiting[count:]
        held.update(ids)
        return [current.rows[each] for each in ids]

    def _note(self, index: pa.Table) -> None:
        current = self._round
        index = within(index, current.mixed)
        open_ids = current.rows.keys() - current.finished
        new = [place for place, each in enumerate(index["id"].to_pylist()) if each in open_ids]
        if not new:
            return
        taken = index.take(pa.array(new, pa.int64()))
        ids = set(taken["id"].to_pylist())
        current.found.append(taken)
        current.parts.update(taken["part"].to_pylist())
        current.finished |= ids
        for held in current.held.values():
            held -= ids
        current.waiting = [each for each in current.waiting if each not in ids]
        current.doubtful = [each for each in current.doubtful if each not in ids]
        if current.over or current.waiting or current.count is None:
            self._change()

    def _doubt(self, number: int) -> None:
        """Mark a runner's rows as doubtful: some may be on storage."""
        if held := self._round.held.pop(number, set()):
            self._round.doubtful += [each for each in self._round.rows if each in held]

    def _is_present(self, number: int, life: str) -> bool:
        """Return whether this is the runner as it was started last, and not an earlier one that was cut off."""
        return self._lives.get(number, life) == life

    def _sign(self, number: int) -> None:
        self._signs[number] = self._clock()
        self._silent.discard(number)
        self._told.discard(number)

    def _change(self) -> None:
        """Wake all that wait."""
        self._changed.set()
        self._changed = asyncio.Event()
