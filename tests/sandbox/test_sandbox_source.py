"""How the source of a cell is prepared: as IPython does it, and only once."""

import pytest
from IPython.core.interactiveshell import InteractiveShell

from nbrl.sandbox.inside.cell_source import CellSource
from tests.sandbox.sandbox_lab import Lab

pytestmark = pytest.mark.sandbox
COUNT = """
calls = []
def note(lines):
    calls.append(len(lines))
    return lines
get_ipython().input_transformers_post.append(note)
"""
ONE_IS_TWO = "get_ipython().input_transformers_post.append(lambda lines: [line.replace('1', '2') for line in lines])"


@pytest.fixture
def lab(shared_lab: Lab) -> Lab:
    return shared_lab


def said(lab: Lab, *cells: str) -> list[str]:
    return ["".join(output.text for output in done.outputs) for done in lab.cells(*cells)]


@pytest.mark.parametrize(
    ("before", "cell", "expected"),
    [
        ("", "%time\nprint('magic')", "magic\n"),
        ("", "lines = !echo shell\nprint(lines[0])", "shell\n"),
        ("from asyncio import sleep", "await sleep(0)\nprint(7)", "7\n"),
        ("import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    yield 7", "async for n in f(): print(n)", "7\n"),
        ("import asyncio\nasync def f():\n    await asyncio.sleep(0)\n    yield 7", "print([n async for n in f()])", "[7]\n"),
        ("", "# await nothing\nprint('async')", "async\n"),
        ("import inspect", "async def f(): return 7\nprint(inspect.iscoroutinefunction(f))", "True\n"),
        ("", "get_ipython().run_cell('print(6 * 7)');", "42\n"),
    ],
)
def test_cells_run_as_in_ipython(lab: Lab, before: str, cell: str, expected: str) -> None:
    shown = said(lab, before, cell)[1]
    assert shown.splitlines()[-1:] == expected.splitlines() if cell.startswith("%time") else shown == expected


@pytest.mark.parametrize(
    ("before", "cell", "named"),
    [
        ("", "def wrong(:", "SyntaxError"),
        ("", "%nosuchmagic", "UsageError"),
        ("def broken(lines): raise KeyError('mine')\nget_ipython().input_transformers_post.append(broken)", "x = 1", "KeyError"),
        ("", "s = '\ud800'", "UnicodeEncodeError"),
    ],
)
def test_errors_of_preparing_a_cell_show_nothing_of_ours(lab: Lab, before: str, cell: str, named: str) -> None:
    shown = said(lab, before, cell)[1]
    assert named in shown
    assert "cell_source" not in shown


def test_a_cell_that_is_nested_too_deeply_is_told(lab: Lab) -> None:
    if lab.provisioner == "bubblewrap":
        pytest.skip("stock kernels never answer such a cell")
    assert "RecursionError" in said(lab, "x = " + "1+" * 5_000 + "1  # async")[0]


def test_a_cell_that_is_repeated_is_transformed_again_by_what_was_changed_meanwhile(lab: Lab) -> None:
    assert said(lab, "print(1)", ONE_IS_TWO, "print(1)", "print(1)") == ["1\n", "", "2\n", "2\n"]


def test_of_a_cell_that_awaits_nothing_is_left_for_those_that_it_runs() -> None:
    shell = InteractiveShell()
    source = CellSource(shell)
    for cell, awaits in (("await f()", True), ("x = 'await'", False)):
        source.begin()
        assert shell.should_run_async(cell, transformed_cell=shell.transform_cell(cell)) == awaits
        assert ("transform_cell" in vars(shell)) == (not awaits)
        assert shell.transform_cell(cell) == f"{cell}\n"
        assert "transform_cell" not in vars(shell)


@pytest.mark.more
def test_a_prepared_kernel_transforms_a_cell_once() -> None:
    counted = "print(len(calls))"
    assert said(Lab("zygote"), COUNT, counted, counted, "x = 'async'", counted)[1:] == ["1\n", "2\n", "", "4\n"]
    nested = "get_ipython().run_cell('x = 1')\nget_ipython().run_cell('x = 1')\nprint(len(calls))"
    assert said(Lab("zygote"), COUNT, nested)[1] == "3\n"
