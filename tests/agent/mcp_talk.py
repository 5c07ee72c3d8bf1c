"""How tests use the tools of an MCP server: a library with it, and cells."""

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import TypeVar

from nbrl.agent.kernels.inline import InlineKernel
from nbrl.agent.kernels.prelude import prelude
from nbrl.agent.tools.base import Toolbox
from nbrl.agent.tools.corpus.corpus import Corpus
from nbrl.agent.tools.library import Equipment, Library
from nbrl.agent.tools.mcp.servers import TrajectoryServers
from nbrl.agent.tools.mcp.transport import Keep
from nbrl.agent.tools.settings import McpSettings, ToolSettings
from nbrl.infra.process.child import kept

T = TypeVar("T")
PATIENT_S = 120.0  # for a server to start, and to answer, on a busy machine


def library_of(settings: ToolSettings, keep: Keep | None = None) -> Library:
    return Library(settings, {"": Equipment(Corpus.in_memory(["Tilo was born in Keldra."]))}, keep=keep)


def with_library(settings: ToolSettings, work: Callable[[Library], Awaitable[T]]) -> T:
    async def body() -> T:
        library = library_of(settings, kept)
        await library.open()
        try:
            return await work(library)
        finally:
            await library.close()

    return asyncio.run(body())


def settings(server: McpSettings, *more: str) -> ToolSettings:
    return ToolSettings(default=(*more, "lab"), mcp={"lab": server})


async def cell(library: Library, code: str) -> str:
    """Return what a cell prints, as the only one of its trajectory."""
    async with trajectory(library) as run:
        return await run(code)


@asynccontextmanager
async def trajectory(library: Library) -> AsyncIterator[Callable[[str], Awaitable[str]]]:
    """Yield what runs a cell of one trajectory, and returns what it printed."""
    async with aclosing(TrajectoryServers()) as servers:
        tools = library.tools("", "qa", servers=servers)
        kernel = InlineKernel(prelude(tools), Toolbox(tools).call)

        async def run(code: str) -> str:
            return "".join(output.text for output in (await kernel.execute(code, 60.0)).outputs)

        yield run


def saying(words: str, timeout_s: float) -> McpSettings:
    """A server that answers every request, `asked`, with the value of `words`."""
    code = f"import json, sys\nfor line in sys.stdin:\n    asked = json.loads(line).get('id')\n    print({words}, flush=True)"
    return McpSettings(command=(sys.executable, "-c", code), timeout_s=timeout_s)


@contextmanager
def over_http(program: str, *words: str) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Yield the address of a server on a port of its own, and its process."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    process = subprocess.Popen([sys.executable, program, str(port), *words])
    try:
        for _ in range(600):
            with socket.socket() as sock:
                if sock.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}/mcp", process
    finally:
        process.kill()
        process.wait()
