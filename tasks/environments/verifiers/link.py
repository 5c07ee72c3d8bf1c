"""Speaks with the program that runs tasksets of verifiers in an environment of its own (nbrl_verifiers): many requests at once.

A refusal is a ValueError; any other fault is an InfraError, of the request alone or, where the program died, hangs or writes
what is no answer, of all that is under way. Then the program is ended, and another one has to be started.
"""

import asyncio
import itertools
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbrl.infra.errors import InfraError
from nbrl.infra.own_code import folder_of
from nbrl.infra.parse import json_value
from nbrl.infra.process.spoken import SpokenProcess

PROGRAM = Path(__file__).with_name("nbrl_verifiers") / "__main__.py"
OPEN_S, PING_S = 300.0, 20.0
ABANDONED = 64  # requests that were not answered in time, after which the program is taken for stuck
OURS = ("VIRTUAL_ENV", "PYTHONHOME", "PYTHONSAFEPATH", "NBRL_OWN_CODE")  # of this environment's Python


@dataclass(frozen=True)
class ProgramOpening:
    """What a program is started with: the Python that has verifiers, a taskset, and its settings by split."""

    python: str
    taskset: str
    settings: Mapping[str, Mapping[str, Any]]


class ProgramLink:
    """A running program; use `open`. `fault` says why it cannot be asked any more."""

    def __init__(self, process: SpokenProcess) -> None:
        self._process = process
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._numbers = itertools.count()
        self._abandoned = 0
        self.fault = ""
        self._reader = asyncio.create_task(self._read())
        self._ending: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, opening: ProgramOpening) -> "ProgramLink":
        """Start a program. Raises ValueError for a taskset that it refuses, InfraError where it does not start."""
        environment = {name: value for name, value in os.environ.items() if name not in OURS}
        link = cls(await SpokenProcess.start([opening.python, str(PROGRAM)], environment))
        folder = folder_of(opening.taskset)
        try:
            settings = {split: dict(each) for split, each in opening.settings.items()}
            await link.ask("open", OPEN_S, taskset=opening.taskset, settings=settings, folder=folder)
        except BaseException:
            await link.close()
            raise
        return link

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ask(self, request: str, limit_s: float, **fields: Any) -> Any:
        """Return the answer. Raises ValueError for a refusal, InfraError for any other fault."""
        if self.fault:
            raise InfraError(self.fault)
        number = next(self._numbers)
        self._waiting[number] = answer = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(limit_s):
                await self._process.send(json.dumps({"id": number, "do": request, **fields}).encode())
                return await answer
        except TimeoutError:
            self._abandoned += 1
            if request != "ping" and (self._abandoned >= ABANDONED or not await self._answers()):
                self._break(f"the program of verifiers did not answer within {limit_s:g} s")
            raise InfraError(f"the program of verifiers did not answer {request} within {limit_s:g} s") from None
        except asyncio.CancelledError:
            self._abandoned += 1
            raise
        finally:
            self._waiting.pop(number, None)

    async def close(self) -> None:
        """End the program and everything it started."""
        self._break("the program of verifiers was ended")
        if self._ending is not None:
            await asyncio.shield(self._ending)

    async def _answers(self) -> bool:
        with suppress(InfraError):
            await self.ask("ping", PING_S)
            return True
        return False

    async def _read(self) -> None:
        try:
            while True:
                self._take(await self._process.line())
        except (InfraError, ValueError) as error:
            self._break(f"of the program of verifiers: {error}")

    def _take(self, line: bytes) -> None:
        """Give an answer to what waits for it, if anything still does. Raises ValueError for what is no answer."""
        try:
            match json_value(line):
                case {"id": int() as number, "ok": value}:
                    given: tuple[Any, Exception | None] = (value, None)
                case {"id": int() as number, "refused": str() as reason}:
                    given = (None, ValueError(reason))
                case {"id": int() as number, "failed": str() as reason}:
                    given = (None, InfraError(reason))
                case _:
                    raise ValueError
        except ValueError:
            raise ValueError(f"it wrote what is no answer: {line[:80]!r}") from None
        waiting = self._waiting.get(number)
        if waiting is None or waiting.done():
            self._abandoned -= 1
        elif given[1] is None:
            waiting.set_result(given[0])
        else:
            waiting.set_exception(given[1])

    def _break(self, reason: str) -> None:
        """Answer all requests with a fault, and end the program."""
        if self._ending is None:
            self.fault = reason
            self._reader.cancel()
            self._ending = asyncio.create_task(self._process.stop())
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(InfraError(reason))
