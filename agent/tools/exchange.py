"""Calls that a cell awaits, several at once over a channel that carries one request at a time."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nbrl.agent.tools.base import Toolbox, awaited

CHANNEL = "awaited_calls"
"""The name of the host call that begins awaited calls and returns those that have ended."""
REQUEST_BYTES = 200_000  # of the arguments that one request begins; escapes in JSON may make them several times as long
REPLY_BYTES = 400_000  # of the values that one answer returns, if there are several
BEGUN = 256  # calls that one request may begin
WAIT_S = 0.5
CELL_OVER = "the cell that called has ended"


def handlers(toolbox: Toolbox, refuses: Callable[[], str] = str) -> dict[str, Callable[[dict[str, Any]], Awaitable[Any]]]:
    """Return what answers the calls of a kernel, by name; those that cells await are begun and waited for by one handler.

    `refuses` returns why no further awaited call can begin, and is empty where one can.
    """
    plain: dict[str, Callable[[dict[str, Any]], Awaitable[Any]]] = {
        name: partial(toolbox.call, name) for name, tool in toolbox.tools.items() if not awaited(tool)
    }
    if not (names := toolbox.tools.keys() - plain.keys()):
        return plain
    exchange = Exchange(toolbox, names, refuses)
    toolbox.end_cell = exchange.settle
    return {**plain, CHANNEL: exchange.serve}


class _Begun(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    begin: list[tuple[int, str, dict[str, Any]]] = Field(max_length=BEGUN)
    wait: bool


class _Ended(NamedTuple):
    number: int
    value: Any
    error: str

    @property
    def size(self) -> int:
        return len(json.dumps([self.error, self.value]))


class Exchange:
    """The awaited calls of one kernel.

    A kernel may send anything: a number is served once, and of a request that makes no sense the cell reads a ValueError.
    """

    def __init__(self, toolbox: Toolbox, names: Collection[str], refuses: Callable[[], str]) -> None:
        self._toolbox, self._names, self._refuses = toolbox, names, refuses
        self._running: dict[int, asyncio.Task[None]] = {}
        self._ended: list[_Ended] = []
        self._changed = asyncio.Event()

    async def serve(self, arguments: dict[str, Any]) -> list[_Ended]:
        """Begin calls; return those that have ended, after a wait of at most WAIT_S if none has and the request says so."""
        try:
            asked = _Begun.model_validate({**arguments, "begin": [tuple(each) for each in arguments.get("begin", ())]})
        except (ValidationError, TypeError):
            raise ValueError("llm and agent are called by their own functions; await those") from None
        for number, name, given in asked.begin:
            if number not in self._running:
                self._begin(number, name, given)
        if asked.wait and not self._ended:
            self._changed.clear()
            try:
                async with asyncio.timeout(WAIT_S):
                    await self._changed.wait()
            except TimeoutError:
                pass
        taken, size = list[_Ended](), 0
        while self._ended and (not taken or size + self._ended[0].size <= REPLY_BYTES):
            size += self._ended[0].size
            taken.append(self._ended.pop(0))
        return taken

    async def settle(self) -> None:
        """Give up the calls under way: their cell has ended."""
        running = [task for task in self._running.values() if not task.done()]
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _begin(self, number: int, name: str, given: dict[str, Any]) -> None:
        reason = self._refuses() if name in self._names else f"there is no {name[:100]!r} to await"
        if reason:
            self._end(number, None, f"{name[:100]}: {reason}")
        else:
            self._running[number] = asyncio.create_task(self._one(number, name, given))

    async def _one(self, number: int, name: str, given: dict[str, Any]) -> None:
        try:
            self._end(number, await self._toolbox.call(name, given), "")
        except asyncio.CancelledError:
            self._end(number, None, f"{name}: {CELL_OVER}")
            raise
        except Exception as error:
            self._end(number, None, f"{name}: {type(error).__name__}: {error}"[:2000])

    def _end(self, number: int, value: Any, error: str) -> None:
        self._ended.append(_Ended(number, value, error))
        self._changed.set()
