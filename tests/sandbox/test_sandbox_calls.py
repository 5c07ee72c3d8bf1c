"""The tool channel: calls out of a cell, answers into it, and all that can go wrong on either side."""

import asyncio
from typing import Any

from sandbox_lab import Lab

from sandbox.kernel import SandboxKernel
from sandbox.output import Execution


async def handler(name: str, arguments: dict[str, Any]) -> Any:
    match name:
        case "add":
            return arguments["a"] + arguments["b"]
        case "echo":
            return arguments
        case "slow":
            await asyncio.sleep(60)
        case "odd":
            return object()
        case "big":
            return "x" * 5_000_000
    raise LookupError(f"no tool called {name}")


def test_a_call_brings_its_answer(lab: Lab) -> None:
    code = "print(host_call('add', {'a': 1, 'b': 2}), host_call('echo', {'é': [1, None, 'ü' * 70000]})['é'][2] == 'ü' * 70000)"
    assert lab.value(code, calls=handler) == "3 True\n"


def test_what_fails_on_the_host_is_a_runtime_error_in_the_cell(lab: Lab) -> None:
    cells = ("host_call('nope', {})", "host_call('odd', {})", "host_call('big', {})", "host_call('echo', {'a': object()})")
    cells += ("host_call('slow', {})", "host_call('echo', {'a': 'x' * 5_000_000})", "host_call('add', {'a': 1, 'b': 2})")
    *failed, fine = lab.cells(*cells, calls=handler, call_timeout_s=0.5)
    said = ("LookupError: no tool called nope", "not JSON", "bytes", "not JSON", "no answer within 0.5 s", "bytes")
    for done, part in zip(failed, said, strict=True):
        assert (done.status, done.outputs[-1].ename) == ("error", "RuntimeError"), done
        assert part in done.outputs[-1].evalue
        assert "/channel.py" not in done.outputs[-1].text
    assert fine.outputs[0].text == "3"


def test_without_a_handler_a_kernel_has_no_tools(lab: Lab) -> None:
    (done,) = lab.cells("host_call('add', {})")
    assert "no tools" in done.outputs[-1].evalue


def test_an_interrupted_call_leaves_the_channel_whole(lab: Lab) -> None:
    slow, after = lab.cells("host_call('slow', {})", "host_call('add', {'a': 1, 'b': 2})", calls=handler, cell_timeout_s=0.7)
    assert slow.status == "timeout"
    assert after.outputs[0].text == "3"


def test_calls_are_counted(lab: Lab) -> None:
    code = "for _ in range(4): host_call('echo', {})"
    (done,) = lab.cells(code, calls=handler, calls_per_kernel=3)
    assert "no host calls left" in done.outputs[-1].evalue


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

    for done in lab.with_kernel(body, calls=handler)[-1:]:
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
    (done,) = lab.cells(code, calls=handler)
    assert [output.text for output in done.outputs] == ["7\n", "3"]


def test_the_prelude_defines_what_cells_use(lab: Lab) -> None:
    prelude = "def add(a, b):\n    return host_call('add', {'a': a, 'b': b})"
    assert lab.value("print(add(20, 22))", calls=handler, prelude=prelude) == "42\n"
