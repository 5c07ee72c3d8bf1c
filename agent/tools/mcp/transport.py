"""Connects a Model Context Protocol client to its server, with answers bounded while they are read.

Of an answer longer than ANSWER_BYTES no more than that is held, and it becomes an error of the call that it answers.
"""

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

from nbrl.agent.tools.mcp.mended import failure, readable

if TYPE_CHECKING:
    import httpx2
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp.client._transport import TransportStreams

ANSWER_BYTES = 4 << 20
TOO_LONG = f"the answer is larger than {ANSWER_BYTES} bytes"
_CHUNK, _EDGE, _GRACE_S = 1 << 16, 256, 2.0
Keep = Callable[[int], Sequence[str]]
"""Returns the words before a command with which it ends, and all it started, once the other end of a pipe is closed."""


@asynccontextmanager
async def program(
    command: Sequence[str], environment: Mapping[str, str], keep: Keep | None = None
) -> AsyncIterator["TransportStreams"]:
    """Start a server and yield its standard input and output as streams; it and its children end with the block.

    Should this process be killed, `keep` ends them. Their standard error may hold secrets, so it goes to no log. Raises OSError
    when the server cannot be started.
    """
    import anyio

    read, write = os.pipe()
    with ExitStack() as owner:
        owner.callback(os.close, write)
        try:
            process = await _start(command, environment, read, keep)
        finally:
            os.close(read)
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("the server was started without pipes")
        received, answers = anyio.create_memory_object_stream[Any](0)
        requests, sent = anyio.create_memory_object_stream[Any](0)
        tasks = [asyncio.create_task(_read(process.stdout, received)), asyncio.create_task(_write(process.stdin, sent))]
        try:
            yield answers, requests
        finally:
            for task in tasks:
                task.cancel()
            for stream in (received, answers, requests, sent):
                stream.close()
            try:
                await asyncio.gather(*tasks, return_exceptions=True)
                process.stdin.close()
                await _silence(process.stdout)
                owner.close()
                if keep is not None:
                    await _silence(process.stdout)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()


async def _start(
    command: Sequence[str], environment: Mapping[str, str], pipe: int, keep: Keep | None
) -> asyncio.subprocess.Process:
    """Start the program, with the read end of its owner's pipe for what keeps it."""
    from mcp.client.stdio import get_default_environment

    variables = {**get_default_environment(), **environment}
    if shutil.which(command[0], path=variables.get("PATH")) is None:
        raise FileNotFoundError(f"there is no program {command[0]!r}")
    return await asyncio.create_subprocess_exec(
        *([] if keep is None else keep(pipe)),
        *command,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=variables,
        start_new_session=True,
        pass_fds=() if keep is None else (pipe,),
    )


async def _read(stdout: asyncio.StreamReader, said: "MemoryObjectSendStream[Any]") -> None:
    """Pass on each line as a message. A line that is too long and names no request ends the session."""
    from mcp.shared.message import SessionMessage
    from mcp.types import jsonrpc_message_adapter

    async with said:
        async for line, whole in _lines(stdout):
            try:
                message = jsonrpc_message_adapter.validate_json(line, by_name=False) if whole else failure(line, TOO_LONG)
            except ValueError as error:
                message = readable(line)
                if message is None:
                    await said.send(error)
                    continue
            if message is None:
                return
            await said.send(SessionMessage(message))


async def _lines(stdout: asyncio.StreamReader) -> AsyncIterator[tuple[bytes, bool]]:
    """Yield each line and True; of one too long its two ends, and False."""
    line, cut = bytearray(), False
    while chunk := await stdout.read(_CHUNK):
        *ended, rest = chunk.split(b"\n")
        for part in ended:
            line += part
            whole = not cut and len(line) <= ANSWER_BYTES
            yield bytes(line if whole else line[:_EDGE] + line[-_EDGE:]), whole
            line, cut = bytearray(), False
        line += rest
        if len(line) > ANSWER_BYTES:
            cut = True
            del line[_EDGE:-_EDGE]


async def _silence(stdout: asyncio.StreamReader) -> None:
    """Read what the server still writes until it has ended, or its time has, and drop it."""
    with suppress(TimeoutError):
        async with asyncio.timeout(_GRACE_S):
            while await stdout.read(_CHUNK):
                pass


async def _write(stdin: asyncio.StreamWriter, sent: "MemoryObjectReceiveStream[Any]") -> None:
    with suppress(ConnectionError):
        async for message in sent:
            stdin.write(message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
            await stdin.drain()


async def bounded(response: "httpx2.Response") -> None:
    """Bound a response: a hook of the HTTP client. Streams of events are bounded, event by event, by the protocol's client."""
    import httpx2

    class Bounded(httpx2.AsyncByteStream):
        def __init__(self, stream: Any) -> None:
            self._stream = stream

        async def __aiter__(self) -> AsyncIterator[bytes]:
            if response.headers.get("Content-Encoding", "identity") != "identity":
                raise httpx2.StreamError("the answer is compressed, which was not requested")
            size = 0
            async for chunk in self._stream:
                size += len(chunk)
                if size > ANSWER_BYTES:
                    raise httpx2.StreamError(TOO_LONG)
                yield chunk

        async def aclose(self) -> None:
            await self._stream.aclose()

    if not response.headers.get("Content-Type", "").lower().startswith("text/event-stream"):
        response.stream = Bounded(response.stream)
