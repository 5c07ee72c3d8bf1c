"""Tools that a program reaches by MCP: one call at a time, within limits."""

import asyncio
import json
from typing import Any

from nbrl.agent.recorder.server import Pace
from nbrl.agent.recorder.tool_server import ToolServer
from nbrl.agent.tools.base import Toolbox
from nbrl.agent.tools.functions import FunctionTool

running = 0


async def wait(seconds: float) -> int:
    """Wait, and return how many calls run at once."""
    global running
    running += 1
    await asyncio.sleep(seconds)
    running -= 1
    return running + 1


async def text(length: int) -> str:
    """Return a long text."""
    return "x" * length


async def called(server: ToolServer, name: str, **arguments: Any) -> tuple[str, bool]:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "arguments": arguments}}
    answer = await server.answer(json.dumps(body).encode())
    assert answer is not None
    return answer["result"]["content"][0]["text"], not answer["result"]["isError"]


def server(**limits: Any) -> ToolServer:
    return ToolServer(Toolbox([FunctionTool(wait), FunctionTool(text)]), **{"timeout_s": 5.0, "calls": 4, **limits})


def test_calls_wait_for_each_other_and_end_with_their_number() -> None:
    async def run() -> list[tuple[str, bool]]:
        tools = server()
        return await asyncio.gather(*(called(tools, "wait", seconds=0.01) for _ in range(6)))

    said = asyncio.run(run())
    assert said[:4] == [("1", True)] * 4
    assert {text for text, ok in said[4:] if not ok} == {"RuntimeError: this trajectory has made all the calls that it may"}


def test_an_answer_that_is_too_late_or_too_long_is_an_error() -> None:
    assert asyncio.run(called(server(timeout_s=0.01), "wait", seconds=5)) == (
        "TimeoutError: wait did not answer within 0.01 s", False
    )  # fmt: skip
    said = [asyncio.run(called(server(call_bytes=100), "text", length=length)) for length in (100, 101)]
    assert [ok for _, ok in said] == [True, False]
    assert said[1][0] == "ValueError: text says 101 characters, 100 are allowed"


def test_requests_have_a_pace_after_a_burst() -> None:
    async def run() -> tuple[float, float]:
        pace, loop = Pace(20.0), asyncio.get_running_loop()
        began = loop.time()
        for _ in range(19):
            await pace.wait()
        burst = loop.time() - began
        for _ in range(5):
            await pace.wait()
        return burst, loop.time() - began

    burst, all_of_them = asyncio.run(run())
    assert burst < all_of_them
    assert all_of_them >= 0.15
