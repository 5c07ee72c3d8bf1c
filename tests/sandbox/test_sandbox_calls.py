"""The tool channel: calls out of a cell, answers into it, and all that can go wrong on either side."""

import asyncio
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from nbrl.sandbox.host_calls import HostCalls
from nbrl.sandbox.inside.channel import frame
from nbrl.sandbox.jupyter.outputs import Execution
from nbrl.sandbox.kernel import SandboxKernel
from nbrl.sandbox.settings import KernelLimits
from tests.sandbox.sandbox_lab import Lab


@pytest.fixture
def lab(shared_lab: Lab) -> Lab:
    return shared_lab


def resident_pages() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1])


async def add(arguments: dict[str, Any]) -> Any:
    return arguments["a"] + arguments["b"]


async def echo(arguments: dict[str, Any]) -> Any:
    return arguments


async def slow(arguments: dict[str, Any]) -> Any:
    await asyncio.sleep(60)


async def odd(arguments: dict[str, Any]) -> Any:
    return object()


async def big(arguments: dict[str, Any]) -> Any:
    return "x" * 5_000_000


TOOLS = {"add": add, "echo": echo, "slow": slow, "odd": odd, "big": big}


def test_a_call_brings_its_answer(lab: Lab) -> None:
    code = "print(host_call('add', {'a': 1, 'b': 2}), host_call('echo', {'é': [1, None, 'ü' * 70000]})['é'][2] == 'ü' * 70000)"
    assert lab.value(code, tools=TOOLS) == "3 True\n"


def test_what_fails_on_the_host_is_a_runtime_error_in_the_cell(lab: Lab) -> None:
    cells = ("host_call('nope', {})", "host_call('odd', {})", "host_call('big', {})", "host_call('echo', {'a': object()})")
    cells += ("host_call('slow', {})", "host_call('echo', {'a': 'x' * 5_000_000})", "host_call('add', [1, 2])")
    cells += ("host_call('echo', {'a': [[]] * 60_000})", "host_call('add', {'a': 1, 'b': 2})")
    *failed, fine = lab.cells(*cells, tools=TOOLS, call_timeout_s=0.5)
    said = ("there is no tool 'nope'", "not JSON", "bytes", "not JSON", "no answer within 0.5 s", "bytes", "the request is not")
    said += ("the request has more than 50000 lists and objects",)
    for done, part in zip(failed, said, strict=True):
        assert (done.status, done.outputs[-1].ename) == ("error", "RuntimeError"), done
        assert part in done.outputs[-1].evalue
        assert "/channel.py" not in done.outputs[-1].text
    assert fine.outputs[0].text == "3"


def test_a_kernel_reaches_only_the_tools_it_was_given(lab: Lab) -> None:
    (none,) = lab.cells("host_call('add', {})")
    assert "there is no tool 'add'; there are: none" in none.outputs[-1].evalue
    (other,) = lab.cells("host_call('add', {})", tools={"echo": echo})
    assert "there is no tool 'add'; there are: echo" in other.outputs[-1].evalue


def test_an_interrupted_call_leaves_the_channel_whole(lab: Lab) -> None:
    cells = ("host_call('slow', {})", "host_call('add', {'a': 1, 'b': 2})")
    slow, after = lab.cells(*cells, tools=TOOLS, cell_timeout_s=0.7, interrupt_grace_s=60)
    assert slow.status == "timeout"
    assert after.outputs[0].text == "3"


def test_calls_are_counted(lab: Lab) -> None:
    code = "for _ in range(4): host_call('echo', {})"
    (done,) = lab.cells(code, tools=TOOLS, calls_per_kernel=3)
    assert "no host calls left" in done.outputs[-1].evalue


def test_every_request_is_counted(lab: Lab) -> None:
    async def body(kernel: SandboxKernel) -> int:
        for cell in ("host_call('echo', {})", "host_call('nope', {})", "host_call('add', {})", "host_call('add', {})"):
            await kernel.execute(cell)
        return kernel.host_calls.calls

    assert lab.with_kernel(body, tools=TOOLS, calls_per_kernel=3) == 4


def test_calls_come_no_faster_than_allowed(lab: Lab) -> None:
    """Counted by what the host saw: 3 at once (one second's worth and the one that is due), then one each third of a second."""
    began: list[float] = []

    async def note(arguments: dict[str, Any]) -> None:
        began.append(time.monotonic())

    lab.cells("for _ in range(7): host_call('note', {})", tools={"note": note}, calls_per_s=3)
    assert len(began) == 7
    assert began[-1] - began[0] > 0.9


def test_a_cell_that_asks_and_never_reads_grows_nothing_on_the_host(lab: Lab) -> None:
    flood = """
import json, socket, struct
own = host_call.__closure__[0].cell_contents._socket
own.settimeout(0.5)
request = json.dumps({"id": 1, "name": "large", "arguments": {}}).encode()
sent = 0
try:
    for sent in range(2000):
        own.sendall(struct.pack("!I", len(request)) + request)
except TimeoutError:
    pass
print(sent)
"""

    async def large(arguments: dict[str, Any]) -> Any:
        return "x" * 900_000

    async def body(kernel: SandboxKernel) -> tuple[Execution, int]:
        before = resident_pages()
        done = await kernel.execute(flood)
        return done, (resident_pages() - before) * 4096

    done, grown = lab.with_kernel(body, tools={"large": large}, calls_per_s=100_000)
    assert done.status == "ok"
    assert grown < 64 * 1024 * 1024


def test_garbage_on_the_channel_breaks_nothing_on_the_host(lab: Lab) -> None:
    find = """
import gc, socket, struct
own = host_call.__closure__[0].cell_contents._socket
"""
    garbage = (
        "own.sendall(struct.pack('!I', 5) + b'[1, 2')",
        "own.sendall(struct.pack('!I', 2) + b'[]')",
        "own.sendall(struct.pack('!I', 100000) + b'[' * 100000)",
        "own.sendall(b'\\xff' * 100)",
        "own.shutdown(socket.SHUT_RDWR)",
    )

    async def body(kernel: SandboxKernel) -> list[Execution]:
        await kernel.execute(find)
        return [await kernel.execute(cell) for cell in (*garbage, "6 * 7")]

    for done in lab.with_kernel(body, tools=TOOLS)[-1:]:
        assert done.outputs[0].text == "42"


def test_a_forked_child_has_no_tools(lab: Lab) -> None:
    code = """
import os
child = os.fork()
if child == 0:
    try:
        host_call('add', {'a': 1, 'b': 2})
    except RuntimeError as error:
        os._exit(7)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
host_call('add', {'a': 1, 'b': 2})
"""
    (done,) = lab.cells(code, tools=TOOLS)
    assert [output.text for output in done.outputs] == ["7\n", "3"]


def test_the_prelude_defines_what_cells_use(lab: Lab) -> None:
    prelude = "def add(a, b):\n    return host_call('add', {'a': a, 'b': b})"
    assert lab.value("print(add(20, 22))", tools=TOOLS, prelude=prelude) == "42\n"


def request(number: int, value: str) -> bytes:
    return frame({"id": number, "name": "echo", "arguments": {"a": value}})


def test_a_request_begins_though_the_next_came_with_it() -> None:
    began: list[str] = []

    async def note(arguments: dict[str, Any]) -> None:
        began.append(arguments["a"])

    async def run() -> None:
        ours, theirs = socket.socketpair()
        host_calls = HostCalls(KernelLimits())
        host_calls.tools = {"echo": note}
        serving = asyncio.create_task(host_calls.serve(ours))
        theirs.sendall(request(1, "first") + request(2, "second"))
        theirs.shutdown(socket.SHUT_WR)
        async with asyncio.timeout(20):
            await serving
        theirs.close()

    asyncio.run(run())
    assert began == ["first", "second"]


def test_the_end_of_a_kernel_whose_calls_are_paced_does_not_deafen_the_next() -> None:
    async def run() -> None:
        ours, theirs = socket.socketpair()
        serving = asyncio.create_task(HostCalls(KernelLimits(calls_per_s=0.1)).serve(ours))
        theirs.sendall(request(1, "") * 3)
        await asyncio.sleep(0.1)
        ours.close()
        mine, yours = socket.socketpair()
        heard = asyncio.Event()
        asyncio.get_running_loop().add_reader(mine, heard.set)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        yours.send(b"x")
        async with asyncio.timeout(20):
            await heard.wait()
        asyncio.get_running_loop().remove_reader(mine)
        for sock in (theirs, mine, yours):
            sock.close()

    asyncio.run(run())
