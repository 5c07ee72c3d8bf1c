"""How tests use the tools of an MCP server: a library with it, and cells."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from typing import TypeVar

from nbrl.agent.kernels.inline import InlineKernel
from nbrl.agent.kernels.prelude import prelude
from nbrl.agent.tools.base import Toolbox
from nbrl.agent.tools.corpus.corpus import Corpus
from nbrl.agent.tools.library import Equipment, Library
from nbrl.agent.tools.settings import McpSettings, ToolSettings

T = TypeVar("T")
PATIENT_S = 120.0  # for a server to start, and to answer, on a busy machine


def with_library(settings: ToolSettings, work: Callable[[Library], Awaitable[T]]) -> T:
    async def body() -> T:
        library = Library(settings, {"": Equipment(Corpus.in_memory(["Tilo was born in Keldra."]))})
        await library.open()
        try:
            return await work(library)
        finally:
            await library.close()

    return asyncio.run(body())


def settings(server: McpSettings, *more: str) -> ToolSettings:
    return ToolSettings(default=(*more, "lab"), mcp={"lab": server})


async def cell(library: Library, code: str) -> str:
    tools = library.tools("", "qa")
    kernel = InlineKernel(prelude(tools), Toolbox(tools).call)
    return "".join(output.text for output in (await kernel.execute(code, 60.0)).outputs)


def saying(words: str, timeout_s: float) -> McpSettings:
    """A server that answers every request, `asked`, with the value of `words`."""
    code = f"import json, sys\nfor line in sys.stdin:\n    asked = json.loads(line).get('id')\n    print({words}, flush=True)"
    return McpSettings(command=(sys.executable, "-c", code), timeout_s=timeout_s)
