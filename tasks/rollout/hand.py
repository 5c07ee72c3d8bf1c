"""The rows that a runner has in hand."""

import asyncio
from collections.abc import Coroutine
from typing import Any

RESERVE = 4  # for so many episodes at once one more row is in hand, so that none of them waits for the desk


class Hand:
    """A task for each row, with `slots` of them in an episode at once; a row that is only being stored takes no place."""

    def __init__(self, slots: int) -> None:
        self._gate = asyncio.Semaphore(slots)
        self._places = slots + max(1, slots // RESERVE)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()
        self._freed = asyncio.Event()

    @property
    def free(self) -> int:
        """How many more rows it takes."""
        return max(0, self._places)

    def add(self, identity: str, work: Coroutine[Any, Any, None]) -> None:
        """Begin with a row, whose earlier task is about to end, if there is one. Raises what a task of it that ended raised."""
        if identity in self._tasks and self._tasks[identity].done():
            self._tasks[identity].result()
        self._places -= 1
        self._tasks[identity] = asyncio.create_task(work)

    def __contains__(self, identity: str) -> bool:
        return identity in self._tasks and not self._tasks[identity].done()

    def give_again(self, identity: str) -> None:
        """A row in hand was given once more, after it had been given to somebody else."""
        self._again.add(identity)

    def was_given_again(self, identity: str) -> bool:
        """Whether that happened since this was asked last."""
        given = identity in self._again
        self._again.discard(identity)
        return given

    async def __aenter__(self) -> None:
        """The beginning of an episode."""
        await self._gate.acquire()

    async def __aexit__(self, *_: object) -> None:
        self._gate.release()
        self._places += 1
        self._freed.set()

    async def room(self, limit_s: float) -> None:
        """Wait until there is a place, at most `limit_s` seconds. Raises what a row's task raised."""
        if not self.free:
            self._freed.clear()
            try:
                async with asyncio.timeout(limit_s):
                    await self._freed.wait()
            except TimeoutError:
                pass
        for identity in [identity for identity, task in self._tasks.items() if task.done()]:
            self._tasks.pop(identity).result()

    async def drop(self) -> None:
        """End all tasks."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
