"""How the source of a cell is prepared: as IPython does it, and only once."""

import pytest

from tests.sandbox.sandbox_lab import Lab

pytestmark = pytest.mark.sandbox
COUNT = """
calls = []
def note(lines):
    calls.append(len(lines))
    return lines
get_ipython().input_transformers_post.append(note)
"""


def said(lab: Lab, *cells: str) -> list[str]:
    return ["".join(output.text for output in done.outputs) for done in lab.cells(*cells)]


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("%precision 2\nprint('magic')", "magic\n"),
        ("lines = !echo shell\nprint(lines[0])", "shell\n"),
        ("import asyncio\nawait asyncio.sleep(0)\nprint('awaited')", "awaited\n"),
        ("import asyncio\nasync def f(): return 7\nprint(await f())", "7\n"),
        ("async def f(): yield 7\nasync for n in f(): print(n)", "7\n"),
        ("async def f(): yield 7\nprint([n async for n in f()])", "[7]\n"),
        ("# await nothing\nprint('async', asyncio if False else 'await')", "async await\n"),
        ("import asyncio\nasync def f(): return 7\nprint(asyncio.iscoroutinefunction(f))", "True\n"),
        ("get_ipython().run_cell('print(6 * 7)');", "42\n"),
        ("def wrong(:", "SyntaxError: invalid syntax (<ipython-input-1, line 1>)"),
        ("%nosuchmagic", "UsageError: Line magic function `%nosuchmagic` not found.\n"),
    ],
)
def test_cells_run_as_in_ipython(lab: Lab, cell: str, expected: str) -> None:
    (shown,) = said(lab, cell)
    assert expected.partition(" (<")[0].strip() in shown


def test_a_cell_that_is_repeated_is_transformed_again_by_what_was_changed_meanwhile(lab: Lab) -> None:
    change = "get_ipython().input_transformers_post.append(lambda lines: [line.replace('1', '2') for line in lines])"
    assert said(lab, "print(1)", change, "print(1)", "print(1)") == ["1\n", "", "2\n", "2\n"]


def test_a_cell_that_awaits_leaves_nothing_for_the_next(lab: Lab) -> None:
    change = "get_ipython().input_transformers_post.append(lambda lines: [line.replace('1', '2') for line in lines])"
    cell = "import asyncio; await asyncio.sleep(0); print(1)"
    assert said(lab, cell, change, cell) == ["1\n", "", "2\n"]


def test_a_prepared_kernel_transforms_a_cell_once() -> None:
    counted = "print(len(calls))"
    assert said(Lab("zygote"), COUNT, counted, counted, "calls.clear()", "x = 1\ny = 2", "z = 3", counted)[1:3] == ["1\n", "2\n"]
    assert (
        said(Lab("zygote"), COUNT, "get_ipython().run_cell('x = 1')\nget_ipython().run_cell('x = 1')\nprint(len(calls))")[1]
        == "3\n"
    )
