"""What cells do as in any notebook: import, fork, exit, show, print over what was printed, and leave work behind."""

import asyncio

import pytest

from nbrl.sandbox.jupyter.outputs import Execution
from nbrl.sandbox.kernel import SandboxKernel
from tests.sandbox.sandbox_lab import Lab


@pytest.fixture
def lab(shared_lab: Lab) -> Lab:
    return shared_lab


def seen(done: Execution) -> str:
    return "".join(output.text for output in done.outputs)


def test_modules_of_the_working_folder_can_be_imported_and_hide_none_of_pythons(lab: Lab) -> None:
    _, own, package, stock = lab.cells(
        "%%writefile prices.py\nVAT = 19",
        "import prices\nprices.VAT",
        "import os\nos.mkdir('shop')\nopen('shop/parts.py', 'w').write('SIZE = 3')\nimport shop.parts\nshop.parts.SIZE",
        "open('queue.py', 'w').write('1/0')\nimport queue\nqueue.Queue.__name__",
    )
    assert [seen(done) for done in (own, package, stock)] == ["19", "3", "'Queue'"]


FORKS = """
import os, sys
if os.fork() == 0:
    print('child'); display('shown')
    1 / 0
codes = [os.waitstatus_to_exitcode(os.wait()[1])]
for code in (0, 3):
    if os.fork() == 0:
        sys.exit(code)
    codes.append(os.waitstatus_to_exitcode(os.wait()[1]))
print(codes)
"""
IN_A_TASK = """
import asyncio
async def fork():
    if os.fork() == 0:
        sys.stdout.write('no line end')
        raise ValueError('in a task')
task = asyncio.create_task(fork())
await asyncio.sleep(0)
os.waitstatus_to_exitcode(os.wait()[1])
"""


def test_a_forked_child_ends_with_its_cell_and_the_notebook_goes_on(lab: Lab) -> None:
    first, second, *after = lab.cells(f"{FORKS}me = os.getpid()", IN_A_TASK, *["os.getpid() == me"] * 3)
    assert "child\n'shown'\n" in seen(first)
    assert "ZeroDivisionError: division by zero" in seen(first)
    assert "msg_id" not in seen(first)
    assert seen(first).endswith("[1, 0, 3]\n")
    assert "no line end" in seen(second)
    assert "ValueError: in a task" in seen(second)
    assert seen(second).endswith("1")
    assert [(done.status, seen(done)) for done in after] == [("ok", "True")] * 3


@pytest.mark.parametrize("name", ["stdout", "stderr"])
@pytest.mark.parametrize("cell", ["sys.{0}.close()", "sys.{0} = None", "with open('log', 'w') as f: sys.{0} = f"])
def test_a_cell_that_loses_its_streams_gets_them_back(lab: Lab, cell: str, name: str) -> None:
    lost, after = lab.cells(f"import sys\nx = 1\n{cell.format(name)}", "print(x); print(x + 1, file=sys.stderr)")
    assert (lost.status, after.status) == ("ok", "ok")
    assert {output.name: output.text for output in after.outputs} == {"stdout": "1\n", "stderr": "2\n"}


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_the_end_of_a_capture_gives_the_streams_back(lab: Lab, name: str) -> None:
    capture = "import contextlib, io, sys\nsys.{0} = io.StringIO()\nprint('lost', file=sys.{0})\nsys.{0} = sys.__{0}__"
    within = "with contextlib.redirect_{0}(sys.__{0}__): print('within', file=sys.{0})\nprint('last', file=sys.__{0}__)"
    _, held, after = lab.cells(capture.format(name), within.format(name), f"print('next', file=sys.{name})")
    assert [(output.name, output.text) for output in after.outputs] == [(name, "next\n")]
    assert seen(held) == "within\nlast\n"


@pytest.mark.parametrize("loss", ["sys.stdout = open('log', 'w')\nsys.stdout.close()", "sys.stdout = None", "sys.stderr = None"])
def test_an_error_after_the_streams_are_lost_is_shown(lab: Lab, loss: str) -> None:
    lost, after = lab.cells(f"import sys\n{loss}\n1 / 0", "print('next')")
    assert (lost.status, seen(after)) == ("error", "next\n")
    assert "ZeroDivisionError: division by zero" in seen(lost)


def test_programs_that_debian_links_to_are_there(lab: Lab) -> None:
    (done,) = lab.cells("!which cat; ls /usr/bin/awk >/dev/null 2>&1 && awk 'BEGIN {print 1}'")
    assert "not found" not in seen(done)


def test_workers_that_cells_start_have_their_packages(lab: Lab) -> None:
    cell = "from multiprocessing import get_context\nwith get_context('spawn').Pool(1) as pool:\n    "
    (done,) = lab.cells(cell + "print(pool.apply(eval, ['__import__(\"traitlets\").__name__']))")
    assert (done.status, seen(done)) == ("ok", "traitlets\n")


def test_cells_have_the_arguments_of_a_prompt(lab: Lab) -> None:
    parsed = "import argparse, sys\nargparse.ArgumentParser(exit_on_error=False).parse_args()"
    tested = "import unittest\nclass T(unittest.TestCase):\n    def test(self): pass\nunittest.main()"
    shown, arguments, run = lab.cells(parsed, "sys.argv", tested)
    assert (seen(shown), seen(arguments), run.status) == ("Namespace()", "['']", "ok")


@pytest.mark.parametrize("leave", ["exit()", "exit", "quit(0)", "import sys; sys.exit()", "raise SystemExit"])
def test_exit_ends_its_cell_and_not_the_kernel(lab: Lab, leave: str) -> None:
    if leave == "exit":
        ended, after = lab.cells(leave, "x = 1\nx")
    else:
        ended, after = lab.cells(f"print('before')\n{leave}\nprint('after')", "x = 1\nx")
        assert seen(ended) == "before\n"
    assert (ended.status, after.status, seen(after)) == ("ok", "ok", "1")


def test_an_exit_with_a_code_or_a_reason_is_an_error(lab: Lab) -> None:
    said, code, after = lab.cells("import sys; sys.exit('no such file')", "exit(3)", "1")
    assert [(done.status, done.outputs[-1].ename, done.outputs[-1].evalue) for done in (said, code)] == [
        ("error", "SystemExit", "no such file"),
        ("error", "SystemExit", "3"),
    ]
    assert seen(after) == "1"


def test_a_task_that_exits_ends_alone(lab: Lab) -> None:
    code = "import asyncio, sys\nasyncio.get_running_loop().call_soon(sys.exit)\nawait asyncio.sleep(0.01)\n'on'"
    first, after = lab.cells(code, "'alive'")
    assert (seen(first), seen(after)) == ("'on'", "'alive'")


def test_a_namespace_that_was_emptied_still_shows_results(lab: Lab) -> None:
    _, result, last, _, after = lab.cells("x = 5\nglobals().clear()", "6 * 7", "_", "%reset -f", "8")
    assert [seen(done) for done in (result, last, after)] == ["42", "42", "8"]


def test_streams_are_merged_in_the_order_of_their_writes(lab: Lab) -> None:
    code = """
import logging, os, sys
logging.basicConfig(format='%(message)s')
for i in range(2):
    print('row', i); logging.warning('warned'); os.system('echo shell'); print('err', file=sys.stderr)
"""
    (done,) = lab.cells(code)
    assert seen(done) == "".join(f"row {i}\nwarned\nshell\nerr\n" for i in range(2))


def test_streams_take_bytes_and_may_be_wrapped(lab: Lab) -> None:
    code = "import io, sys\nsys.stdout.reconfigure(encoding='utf-8')\nsys.stdout.buffer.write('é\\n'.encode())"
    wrap = "sys.stdout = io.TextIOWrapper(sys.stdout.buffer, encoding='utf-8')\nprint('ä')"
    parts = "for part in (b'\\xc3', b'\\xa9'): sys.stdout.buffer.write(part)"
    done = lab.cells(f"{code}\nNone", f"import sys\n{parts}", wrap, "print('after')")
    assert [seen(each) for each in done] == ["é\n", "é", "ä\n", "after\n"]


def test_a_display_is_updated_in_its_cell_and_shown_again_by_a_later_one(lab: Lab) -> None:
    first, later = lab.cells(
        "h = display('0 of 3', display_id=True)\nprint('-')\nfor i in (1, 2, 3): h.update(f'{i} of 3')",
        "for word in ('nearly', 'done'): h.update(word)",
    )
    assert [output.text for output in first.outputs] == ["'3 of 3'", "-\n"]
    assert [output.text for output in later.outputs] == ["'done'"]


def test_work_that_a_cell_left_behind_is_seen_in_the_next(lab: Lab) -> None:
    async def body(kernel: SandboxKernel) -> tuple[Execution, Execution]:
        left = "import asyncio\nasync def work():\n    print('begun'); await go.wait(); print('ended'); display('shown')\n"
        await kernel.execute(f"{left}go = asyncio.Event()\ntask = asyncio.create_task(work())\nawait asyncio.sleep(0)")
        first = await kernel.execute("go.set()\nawait task\nprint('awaited')")
        await kernel.execute("loop = asyncio.get_running_loop()\nloop.call_later(0.05, print, 'between')", silent=False)
        await asyncio.sleep(0.5)
        await kernel.execute("", silent=True)
        return first, await kernel.execute("print('now')")

    first, second = lab.with_kernel(body)
    assert seen(first) == "ended\n'shown'awaited\n"
    assert seen(second) == "between\nnow\n"


def test_an_earlier_cells_task_clears_none_of_this_ones_output(lab: Lab) -> None:
    task = "import asyncio\nfrom IPython.display import clear_output\nasync def late():\n    await go.wait()\n    clear_output()"
    start = f"{task}\ngo = asyncio.Event()\nt = asyncio.create_task(late())\nawait asyncio.sleep(0)"
    _, second = lab.cells(start, "print('mine')\ngo.set()\nawait t\nprint('end')")
    assert seen(second) == "mine\nend\n"


def test_what_goes_wrong_in_a_callback_of_the_loop_is_seen(lab: Lab) -> None:
    (done,) = lab.cells("import asyncio\nasyncio.get_running_loop().call_soon(lambda: 1 / 0)\nawait asyncio.sleep(0.05)")
    assert "ZeroDivisionError: division by zero" in seen(done)


def test_asyncio_runs_a_coroutine_in_a_cell(lab: Lab) -> None:
    code = "import asyncio\nasync def main():\n    await asyncio.sleep(0)\n    return 7"
    _, *done = lab.cells(
        code,
        "asyncio.run(main())",
        "asyncio.get_event_loop().run_until_complete(main())",
        "asyncio.run(main()) + await main()",
        "t = asyncio.create_task(main())\nasyncio.run(main())\nawait t",
        "loop = asyncio.new_event_loop()\nloop.run_until_complete(main())",
        "with asyncio.Runner() as runner:\n    print(runner.run(main()) + runner.run(main()))",
        "await main()",
    )
    assert [seen(each) for each in done] == ["7", "7", "14", "7", "7", "14\n", "7"]


RICH = [
    ("Markdown('# head')", "# head"),
    ("Latex('$x^2$')", "$x^2$"),
    ("HTML('<style>a {}</style><p>one</p><table><tr><td>2<td>3 &lt; 4</table>')", "one\n2\t3 < 4"),
    ("JSON({'a': [1]})", '{"a": [1]}'),
    ("type('A', (), {'_repr_html_': lambda self: '<b>bold</b>', '__repr__': lambda self: 'plain'})()", "plain"),
]


def test_what_is_shown_is_read_as_text(lab: Lab) -> None:
    done = lab.cells("from IPython.display import HTML, JSON, Latex, Markdown", *(code for code, _ in RICH), "object()")
    assert [seen(each) for each in done[1:-1]] == [text for _, text in RICH]
    assert seen(done[-1]).startswith("<object")


def test_a_picture_is_kept_whole_or_left_out_with_a_word(lab: Lab) -> None:
    """Noise, since that is as large packed as it is."""
    make = """
import os, struct, zlib
from IPython.display import Image
def chunk(kind, body): return struct.pack('>I', len(body)) + kind + body + struct.pack('>I', zlib.crc32(kind + body))
def png(size):
    head = chunk(b'IHDR', struct.pack('>IIBBBBB', 8, 8, 8, 0, 0, 0, 0))
    return Image(data=b'\\x89PNG\\r\\n\\x1a\\n' + head + chunk(b'IDAT', os.urandom(size)) + chunk(b'IEND', b''))
"""
    done = lab.cells(make, "png(1_000_000)", "display(png(2_000_000))", "for _ in range(5): display(png(10))")
    assert len(done[1].outputs[0].image) > 1_000_000
    (large,) = done[2].outputs
    assert (large.image, "[image/png left out: it takes 2" in large.text) == (b"", True)
    assert [bool(output.image) for output in done[3].outputs] == [True] * 4 + [False]
    assert "[image left out: 4 are kept of a cell]" in done[3].outputs[4].text


def test_displays_of_many_types_leave_the_kernel_alive(lab: Lab) -> None:
    code = "kinds = ('text/plain', 'text/html', 'text/latex', 'image/svg+xml', 'text/x')\n"
    code += "display({**{kind: 'é' * 900_000 for kind in kinds}, 'application/json': ['x' * 3_000_000]}, raw=True)"
    shown, after = lab.cells(code, "'alive'")
    assert "[application/json left out: " in seen(shown)
    assert seen(after) == "'alive'"


def test_pip_says_at_once_that_there_is_no_network(lab: Lab) -> None:
    environment = lab.value("import os; print(*(f'{k}={v}' for k, v in os.environ.items() if k.startswith('PIP_')))")
    assert "PIP_RETRIES=0" in environment
    assert "no-network" in environment
