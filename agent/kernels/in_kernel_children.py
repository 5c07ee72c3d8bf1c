"""Runs INSIDE the kernel: `llm` and `agent`, which a cell awaits. Sent as source text, so it imports nothing of this package.

Host calls are synchronous and one at a time. So one of them begins all calls that wait, and returns those that have ended since.
"""

import asyncio
import json
import weakref

CHANNEL: str
REQUEST_BYTES: int
BEGUN: int


class _Calls:
    """Calls under way: those not yet begun, and the values and errors of those that ended, by their numbers."""

    def __init__(self) -> None:
        self._count = 0
        self._waiting: list[tuple[int, str, dict, int]] = []
        self._ended: dict[int, tuple] = {}
        self._turns: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # a lock for each event loop

    async def call(self, name: str, arguments: dict) -> dict:
        size = len(json.dumps(arguments))
        if size > REQUEST_BYTES:
            raise ValueError(f"{name}: its arguments take {size} bytes, {REQUEST_BYTES} are allowed")
        self._count += 1
        number = self._count
        self._waiting.append((number, name, arguments, size))
        try:
            await asyncio.sleep(0)  # the others of a gather join
            turn = self._turns.setdefault(asyncio.get_running_loop(), asyncio.Lock())
            while number not in self._ended:
                async with turn:
                    if number not in self._ended:  # in a thread, for the host may take its time
                        await asyncio.to_thread(self._exchange)
        finally:
            self._waiting = [each for each in self._waiting if each[0] != number]
        value, error = self._ended.pop(number)
        if error:
            raise RuntimeError(error)
        return value

    def _exchange(self) -> None:
        begun: list[tuple] = []
        left = REQUEST_BYTES
        while self._waiting and self._waiting[0][3] <= left and len(begun) < BEGUN:
            number, name, arguments, size = self._waiting.pop(0)
            begun.append((number, name, arguments))
            left -= size
        given = {"begin": begun, "wait": not self._waiting}
        for number, value, error in host_call(CHANNEL, given):  # type: ignore[name-defined]
            self._ended[number] = (value, error)


def _answer(ended: dict) -> str:
    return f"no answer: {ended['status']}" if ended["answer"] is None else ended["answer"]


async def llm(prompt: str, max_tokens: int = 256) -> str:
    """Ask the model once, with nothing else in its context than `prompt`, and return what it says."""
    return _answer(await _calls.call("llm", {"prompt": prompt, "max_tokens": max_tokens}))


async def agent(task: str, context: str = "", files: object = (), collect: object = ()) -> str:
    """Let another agent do `task` in a notebook of its own, and return its answer.

    It reads `context` below the task, and finds copies of the `files` in its folder. Of the files that it makes, those named in
    `collect` are copied into this folder, where there is none of that name.
    """
    names = [[each] if isinstance(each, str) else list(each) for each in (files, collect)]  # type: ignore[call-overload]
    return _answer(await _calls.call("agent", {"task": task, "context": context, "files": names[0], "collect": names[1]}))


_calls = _Calls()
