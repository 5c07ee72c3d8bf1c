"""One kernel for one trajectory: a Jupyter client of our own around a `KernelProcess`."""

import asyncio
import contextlib
import itertools
import json
import math
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any, Literal

from nbrl.sandbox.errors import KernelLostError, SandboxError
from nbrl.sandbox.host_calls import HostCalls
from nbrl.sandbox.jupyter.connection import Connection
from nbrl.sandbox.jupyter.messages import KernelMessage
from nbrl.sandbox.jupyter.outputs import Execution, Outputs, Status
from nbrl.sandbox.settings import KernelLimits
from nbrl.sandbox.start.kernel_process import KernelProcess
from nbrl.sandbox.workspace import Workspace

__all__ = ["Execution", "SandboxKernel"]

# How long outputs may arrive after their execute_reply, over another socket. If it takes longer, that socket is broken.
_TRAILING_S = 5.0
_RESEND_INTERRUPT_S = 0.2
_KIND = 40  # characters of a type that a note names


class _Cell:
    """The request in flight and its replies so far."""

    def __init__(self, identity: str, outputs: Outputs, expressions: Mapping[str, str]) -> None:
        self.identity = identity
        self.outputs = outputs
        self.expressions = expressions
        # Only these parts of a reply are kept, because a parsed reply may be thirty times its size.
        self.succeeded = False
        self.answers: dict[str, dict[str, Any]] = {}
        self.replied = asyncio.Event()
        self.idle = asyncio.Event()


class SandboxKernel:
    """Runs cells one at a time. Never raises for what a cell does; with a dead kernel every cell has the status `dead`.

    A kernel that ended because its sandbox did (a zygote, a launcher) raises KernelLostError instead. A cell cannot reach them;
    only a machine that runs out of memory may end both.
    """

    def __init__(self, process: KernelProcess, host_calls: HostCalls, settings: KernelLimits) -> None:
        self.host_calls = host_calls
        self.files = Workspace(process.workspace, settings)
        self._process = process
        self._settings = settings
        self._lock = asyncio.Lock()
        self._cell: _Cell | None = None
        self._late = self._no_outputs()
        self._welcome = asyncio.Event()
        self._connection = Connection(process.address, settings.message_bytes, self._receive, self._on_break)
        self._watch = asyncio.create_task(self._watch_end())

    @property
    def alive(self) -> bool:
        """Return whether cells can still run."""
        return not self._process.gone.is_set()

    async def ready(self) -> None:
        """Wait until the kernel's outputs arrive here."""
        async with asyncio.timeout(self._settings.start_timeout_s):
            await self._until(self._welcome, None)
        if not self.alive:
            raise SandboxError("the kernel ended while it started: is memory_mb too small for its imports?")

    def _no_outputs(self) -> Outputs:
        return Outputs(self._settings.output_bytes, self._settings.images, self._settings.image_bytes)

    async def execute(
        self,
        code: str,
        *,
        timeout: float | None = None,
        expressions: Mapping[str, str] | None = None,
        silent: bool = False,
        paused: Callable[[], float] = float,
        latest: float = math.inf,
    ) -> Execution:
        """Run `code` and, if it succeeded, evaluate `expressions` in the same request.

        Of the seconds that `paused` counts, those that it counts meanwhile are not taken from its time; at the moment `latest` of
        the monotonic clock it ends all the same.

        What tasks and threads of earlier cells show, now or since the last cell, is among its outputs, unless it is `silent`.
        """
        async with self._lock:
            limit = self._settings.cell_timeout_s if timeout is None else timeout
            return await self._execute(code, limit, expressions or {}, silent, paused, latest)

    async def _execute(
        self,
        code: str,
        timeout: float,
        expressions: Mapping[str, str],
        silent: bool,
        paused: Callable[[], float],
        latest: float,
    ) -> Execution:
        began = time.monotonic()
        if not self.alive:
            await self._check_lost()
            return Execution("dead", [], {}, 0.0)
        content = {
            "code": code,
            "silent": silent,
            "store_history": not silent,
            "user_expressions": dict(expressions),
            "allow_stdin": False,
            "stop_on_error": False,
        }
        outputs = self._no_outputs() if silent else self._late
        cell = self._cell = _Cell(self._connection.send("execute_request", content), outputs, expressions)
        status: Status = "ok"
        try:
            if not await self._within(cell.replied, timeout, paused, latest):
                status = "timeout"
                await self._interrupt(cell)
            if not await self._until(cell.idle, _TRAILING_S):
                await self._process.end()
        except BaseException:
            # Cancelled during a cell: the kernel's state is unknown, so it must not be used again.
            await asyncio.shield(self.close())
            raise
        finally:
            self._cell = None
            if not silent:
                self._late = self._no_outputs()
        if not self.alive:
            await self._check_lost()
            status = "dead"
        elif status == "ok" and not cell.succeeded:
            status = "error"
        return Execution(status, cell.outputs.finish(), cell.answers, time.monotonic() - began)

    async def _check_lost(self) -> None:
        await self._process.end()
        if self._process.lost():
            raise KernelLostError("the sandbox that the kernel ran in was ended from outside; what its cell did is not known")

    async def _interrupt(self, cell: _Cell) -> None:
        """Interrupt repeatedly until the cell ends; kill the kernel if it does not end within the grace period.

        An interrupt between two cells is lost, and a cell may swallow one, hence the repetition.
        """
        grace = self._settings.interrupt_grace_s
        deadline = time.monotonic() + grace
        while time.monotonic() < deadline:
            self._process.send_signal(signal.SIGINT)
            if await self._until(cell.replied, max(_RESEND_INTERRUPT_S, grace / 4)):  # time for a traceback on a busy machine
                return
        await self._process.end()

    async def close(self) -> None:
        """Kill the kernel and release everything it held on the host."""
        self._connection.close()
        self.files.close()
        await self._process.end()

    async def _within(self, event: asyncio.Event, timeout: float, paused: Callable[[], float], latest: float) -> bool:
        """Wait for `event` as `_until` does, `timeout` seconds and those that are paused meanwhile, but not beyond `latest`."""
        began, before = time.monotonic(), paused()
        end = max(latest, began + timeout)
        while (left := min(end, began + timeout + paused() - before) - time.monotonic()) > 0:
            if await self._until(event, left):
                return True
        return event.is_set() or not self.alive

    async def _until(self, event: asyncio.Event, timeout: float | None) -> bool:
        """Wait for `event` or the kernel's end; False if neither happened in time."""
        if self.alive:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await event.wait()
        return event.is_set() or not self.alive

    async def _watch_end(self) -> None:
        """Release all waits when the kernel ends."""
        await self._process.gone.wait()
        self._welcome.set()
        if self._cell is not None:
            self._cell.replied.set()
            self._cell.idle.set()

    def _on_break(self) -> None:
        """Kill the kernel: it closed its connection or broke the protocol."""
        self._process.send_signal(signal.SIGKILL)

    def _receive(self, message: KernelMessage) -> None:
        if message.kind == "iopub_welcome":
            self._welcome.set()
        cell, content = self._cell, message.content
        if cell is None or message.parent != cell.identity:
            # A request that is answered: a task or a thread of its cell goes on, and may clear nothing of another cell.
            if message.parent and message.kind != "clear_output":
                _show(message, self._late)
            return
        match message.kind:
            case "execute_reply":
                cell.succeeded = content.get("status") == "ok"
                cell.answers = self._expressions(message, cell.expressions)
                for page in _pages(content):
                    cell.outputs.add("display", page)
                cell.replied.set()
            case "status" if content.get("execution_state") == "idle":
                cell.idle.set()
            case _:
                _show(message, cell.outputs)

    def _expressions(self, reply: KernelMessage, requested: Mapping[str, str]) -> dict[str, dict[str, Any]]:
        """Return the values of the requested expressions; a reply may contain others too."""
        answers = reply.content.get("user_expressions")
        if not isinstance(answers, dict):
            return {}
        limit, kept = self._settings.expression_bytes, {}
        for name in [name for name in requested if name in answers]:
            answer = answers[name]
            if not isinstance(answer, dict) or (reply.size > limit and _exceeds(answer, limit)):
                error = {"status": "error", "ename": "TooLarge", "evalue": f"more than the {limit} bytes that are allowed"}
                answer = {**error, "traceback": []}
            kept[name] = answer
        return kept


def _show(message: KernelMessage, outputs: Outputs) -> None:
    """Add what a message shows; other messages show nothing."""
    content = message.content
    match message.kind:
        case "stream":
            name = "stderr" if content.get("name") == "stderr" else "stdout"
            outputs.add("stream", _string(content.get("text")), name=name)
        case "execute_result" | "display_data" | "update_display_data":
            data, transient = content.get("data"), content.get("transient")
            png = data.get("image/png") if isinstance(data, dict) else None
            display_id = _string(transient.get("display_id")) if isinstance(transient, dict) else ""
            if message.kind == "update_display_data":
                outputs.update(display_id, _text(data), png)
            else:
                kind: Literal["result", "display"] = "result" if message.kind == "execute_result" else "display"
                outputs.add(kind, _text(data), png=png, display_id=display_id)
        case "error":
            lines = content.get("traceback")
            text = "\n".join(line for line in lines if isinstance(line, str)) if isinstance(lines, list) else ""
            ename, evalue = _string(content.get("ename")), _string(content.get("evalue"))
            outputs.add("error", text or f"{ename}: {evalue}", ename=ename, evalue=evalue)
        case "clear_output":
            outputs.clear(wait=bool(content.get("wait")))


def _exceeds(answer: object, limit: int) -> bool:
    """Return whether the answer takes more than `limit` bytes as JSON, or cannot be encoded. Encoding stops at the limit."""
    try:
        pieces = json.JSONEncoder(check_circular=False).iterencode(answer)
        return any(size > limit for size in itertools.accumulate(map(len, pieces)))
    except RecursionError:
        return True


def _string(value: object) -> str:
    """Return the value if it is a string, else empty: converting anything else, as long as a message, would delay the host."""
    return value if isinstance(value, str) else ""


def _text(data: object) -> str:
    """Return the plain text of a mime bundle, or the names of its types, with a note for a picture that is no PNG."""
    if not isinstance(data, dict):
        return ""
    text = data.get("text/plain")
    shown = text if isinstance(text, str) else f"<{', '.join(map(str, data))}>"
    picture = next((kind for kind in data if kind.startswith("image/")), "")
    return shown if not picture or "image/png" in data else f"{shown}\n[{picture[:_KIND]} left out: pictures are kept as PNG]"


def _pages(reply: dict[str, Any]) -> list[str]:
    """Return the text that `name?` and the like show in a pager, which arrives with the reply and not as an output."""
    payload = reply.get("payload")
    parts = [part for part in payload if isinstance(part, dict)] if isinstance(payload, list) else []
    return [_text(part.get("data")) for part in parts if part.get("source") == "page"]
