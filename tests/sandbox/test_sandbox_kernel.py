"""Cells: state, outputs, errors, time-outs, death. What a cell does is an Execution, never an exception."""

from typing import Any

import pytest

from nbrl.sandbox.jupyter.outputs import Execution
from nbrl.sandbox.kernel import SandboxKernel
from tests.sandbox.sandbox_lab import Lab


@pytest.fixture
def lab(shared_lab: Lab) -> Lab:
    return shared_lab


def test_state_stays_between_cells_and_outputs_keep_their_order(lab: Lab) -> None:
    first, second = lab.cells("import sys\nx = 41", "print('a'); print('c'); print('b', file=sys.stderr); x + 1")
    assert first.status == "ok"
    assert [(output.kind, output.name, output.text) for output in second.outputs if output.name != "stderr"] == [
        ("stream", "stdout", "a\nc\n"),
        ("result", "", "42"),
    ]


def test_an_error_is_an_output_with_its_name_and_value(lab: Lab) -> None:
    (done,) = lab.cells("print('before')\n1 / 0")
    assert done.status == "error"
    assert [output.kind for output in done.outputs] == ["stream", "error"]
    error = done.outputs[1]
    assert (error.ename, error.evalue) == ("ZeroDivisionError", "division by zero")
    assert "1 / 0" in error.text
    assert "\x1b" not in error.text


def test_expressions_come_with_the_reply(lab: Lab) -> None:
    async def body(kernel: SandboxKernel) -> tuple[Execution, Execution]:
        code = "class J:\n    def _repr_mimebundle_(self, **_):\n        return {'application/json': {'n': 3}}\nj = J()"
        big = await kernel.execute("big = 'x' * 1_000_000", expressions={"big": "big", "bad": "nope"})
        return await kernel.execute(code, expressions={"note": "j"}), big

    done, big = lab.with_kernel(body)
    assert done.expressions["note"]["data"]["application/json"] == {"n": 3}
    assert big.expressions["big"]["ename"] == "TooLarge"
    assert big.expressions["bad"]["ename"] == "NameError"


def test_expressions_that_were_not_asked_for_are_left_out(lab: Lab) -> None:
    async def body(kernel: SandboxKernel) -> dict[str, Any]:
        await kernel.execute("get_ipython().user_expressions = lambda asked: {str(n): {'n': n} for n in range(1000)}")
        return (await kernel.execute("", expressions={"7": "7"})).expressions

    assert lab.with_kernel(body) == {"7": {"n": 7}}


def test_what_stands_for_a_text_and_is_none_is_not_written_down(lab: Lab) -> None:
    forge = """
k = get_ipython().kernel
for kind, content in (
    ("stream", {"text": [1, [2]]}),
    ("error", {"ename": {}, "evalue": [3], "traceback": ["a", 4, "", "b"]}),
    ([], {}),
):
    type(k.session).send(k.session, k.iopub_socket, kind, content, parent=k.get_parent("shell"), ident=k._topic("x"))
"""
    (done,) = lab.cells(forge)
    assert [(output.text, output.ename, output.evalue) for output in done.outputs] == [("", "", ""), ("a\n\nb", "", "")]


def test_no_time_at_all_is_a_time_too(lab: Lab) -> None:
    async def body(kernel: SandboxKernel) -> str:
        return (await kernel.execute("import time; time.sleep(1)", timeout=0)).status

    # An interrupt that comes before the code may be lost to a stock kernel, which is then killed.
    assert lab.with_kernel(body) in {"timeout", "dead"}


def test_an_endless_loop_is_interrupted_and_the_kernel_still_answers(lab: Lab) -> None:
    # An interrupt that comes before the code may be lost to a stock kernel, so there is time to begin.
    limit_s = 1 if lab.provisioner == "zygote" else 5
    slow, after = lab.cells("x = 5\nwhile True: pass", "x", cell_timeout_s=limit_s, interrupt_grace_s=60)
    assert slow.status == "timeout"
    assert slow.outputs[-1].ename == "KeyboardInterrupt"
    assert limit_s <= slow.seconds < 65
    assert (after.status, after.outputs[0].text) == ("ok", "5")


def test_a_kernel_collects_garbage(lab: Lab) -> None:
    (done,) = lab.cells("import gc; gc.isenabled()")
    assert done.outputs[0].text == "True"


def test_awaiting_cells_work_and_can_be_interrupted(lab: Lab) -> None:
    cells = ("import asyncio\nawait asyncio.sleep(0.01)\n7", "await asyncio.sleep(100)", "8")
    quick, slow, after = lab.cells(*cells, cell_timeout_s=3, interrupt_grace_s=60)
    assert quick.outputs[0].text == "7"
    assert slow.status == "timeout"
    assert after.outputs[0].text == "8"


@pytest.mark.more
def test_a_cell_that_ignores_interrupts_is_killed(lab: Lab) -> None:
    code = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nprint('deaf')\nwhile True: pass"
    deaf, after = lab.cells(code, "1", cell_timeout_s=0.5, interrupt_grace_s=0.5)
    assert (deaf.status, after.status) == ("dead", "dead")
    assert deaf.outputs[0].text == "deaf\n"


def test_a_kernel_that_ends_is_a_status(lab: Lab) -> None:
    for code in ("import os; os._exit(3)", "import ctypes; ctypes.string_at(0)"):
        died, after = lab.cells(code, "1")
        assert (died.status, after.status) == ("dead", "dead")


def test_endless_output_is_cut_in_the_middle(lab: Lab) -> None:
    code = "print('first')\nfor i in range(20_000): print('line', i)\nprint('last')"
    (done,) = lab.cells(code, output_bytes=4096, cell_timeout_s=250)
    assert done.status == "ok"
    text = "".join(output.text for output in done.outputs)
    assert text.startswith("first\n")
    assert text.endswith("last\n")
    assert "… cut …" in text
    assert len(text.encode()) < 5000


def test_memory_beyond_the_limit_is_a_memory_error_and_the_kernel_lives(lab: Lab) -> None:
    big, after = lab.cells("b = bytearray(400 << 20)", "'alive'", memory_mb=300)
    assert (big.status, big.outputs[-1].ename) == ("error", "MemoryError")
    assert after.outputs[0].text == "'alive'"


def test_stdin_is_refused(lab: Lab) -> None:
    (done,) = lab.cells("input('name? ')")
    assert (done.status, done.outputs[-1].ename) == ("error", "StdinNotImplementedError")


def test_output_of_subprocesses_and_forks_is_in_order_and_not_late(lab: Lab) -> None:
    code = """
import os, multiprocessing, subprocess
print("a")
os.system("echo b; echo c >&2")
subprocess.run(["echo", "d"])
print("e")
with multiprocessing.Pool(1) as pool:
    pool.map(print, ["f"])
os.write(1, "ü".encode() * 70000)
print("g")
"""
    (done,) = lab.cells(code, output_bytes=1_000_000)
    text = "".join(output.text for output in done.outputs if output.name == "stdout")
    assert text == "a\nb\nd\ne\nf\n" + "ü" * 70000 + "g\n"
    assert [output.text for output in done.outputs if output.name == "stderr"] == ["c\n"]


@pytest.mark.more
def test_huge_outputs_are_cut_before_they_leave_the_kernel(lab: Lab) -> None:
    cells = (
        "print('a' + 'x' * 60_000_000 + 'b')",
        "'a' + 'x' * 60_000_000 + 'b'",
        "import os\nfor _ in range(40): os.write(1, b'y' * 1_000_000)",
    )
    for done in lab.cells(*cells, "1", message_bytes=1 << 20, image_bytes=0):
        assert done.status == "ok"


@pytest.mark.more
def test_an_exception_that_says_too_much_is_cut_and_the_kernel_lives(lab: Lab) -> None:
    cells = (
        "assert False, list(range(600_000))",
        "raise ValueError('\\n' * 3_000_000)",
        "{}['\\ud800' + 'k' * 3_000_000]",
        "raise type('E' * 3_000_000, (Exception,), {})",
    )
    ended = lab.cells(*cells, message_bytes=1 << 20, image_bytes=0)
    assert [(done.status, [output.kind for output in done.outputs]) for done in ended] == [("error", ["error"])] * 4
    assert "AssertionError: [0, 1, 2" in ended[0].outputs[0].text


def test_a_pager_and_rich_displays_have_text(lab: Lab) -> None:
    page, rich = lab.cells("len?", "from IPython.display import display, HTML\ndisplay(HTML('<b>x</b>'))")
    assert "Return the number of items" in page.outputs[0].text
    assert rich.outputs[0].kind == "display"


def test_a_thread_bomb_hurts_only_the_cell(lab: Lab) -> None:
    code = """
import threading
event, threads = threading.Event(), []
try:
    while len(threads) < 1000:
        threads.append(threading.Thread(target=event.wait, daemon=True))
        threads[-1].start()
except RuntimeError:
    event.set()
print(len(threads) < 100)
"""
    bomb, after = lab.cells(code, "6 * 7")
    assert bomb.outputs[0].text == "True\n"
    assert after.outputs[0].text == "42"
