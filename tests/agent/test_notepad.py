"""The notepad as a cell uses it, and as the host shows it."""

import asyncio
from typing import Any

import pytest

from nbrl.agent.context.notepad import Item, NotepadState, State, notes, read_state
from nbrl.agent.kernel import CellResult
from nbrl.agent.kernels.inline import InlineKernel
from nbrl.agent.kernels.prelude import prelude


def run(*cells: str) -> tuple[list[CellResult], str]:
    """What each cell did, and the notepad after the last as the host renders it."""

    async def work() -> list[CellResult]:
        async def call(name: str, arguments: dict[str, Any]) -> Any:
            raise LookupError(name)

        kernel = InlineKernel(prelude([]), call)
        return [await kernel.execute(cell, 5.0) for cell in cells]

    results = asyncio.run(work())
    return results, read_state(results[-1].state, State()).notepad.render()


def test_plan_facts_and_draft_are_rendered_in_this_order() -> None:
    _, shown = run("notepad.add_todo(['a', 'b', 'c'])\nnotepad.mark_done(0)\nnotepad.mark_doing(1)\nnotepad.add_facts('f')")
    assert shown == "[x] a\n[~] b\n[ ] c\n- f"
    assert NotepadState(plan=[Item(text="a", state="done")], facts=["f"], draft="d").render() == "[x] a\n- f\nd"


def test_what_was_recorded_and_is_no_notepad_is_shown_as_it_is() -> None:
    assert notes(NotepadState(facts=["f"]).model_dump_json()) == "- f"
    assert notes("{ nothing") == "{ nothing"


def test_items_can_be_rewritten_and_removed() -> None:
    _, shown = run(
        "notepad.add_todo(['a', 'b'])\nnotepad.add_facts(['f', 'g', 'h'])\nnotepad.write_draft('d')",
        "notepad.update_todo(0, 'A')\nnotepad.remove_todo(1)\nnotepad.update_fact(0, 'F')\nnotepad.remove_fact(-1)",
    )
    assert shown == "[ ] A\n- F\n- g\nd"


def test_of_two_equal_items_the_named_one_is_removed() -> None:
    _, shown = run("notepad.add_todo(['a', 'b', 'a'])\nnotepad.remove_todo(2)")
    assert shown == "[ ] a\n[ ] b"


@pytest.mark.parametrize(
    ("call", "left"),
    [("clear_todo()", "- f\nd"), ("clear_facts()", "[ ] a\nd"), ("write_draft('')", "[ ] a\n- f"), ("clear()", "")],
)
def test_parts_can_be_cleared(call: str, left: str) -> None:
    _, shown = run("notepad.add_todo('a')\nnotepad.add_facts('f')\nnotepad.write_draft('d')", f"notepad.{call}")
    assert shown == left


def test_the_notepad_reads_with_the_numbers_that_its_calls_take() -> None:
    results, _ = run("notepad", "notepad.add_todo(['a', 'b'])\nnotepad.add_facts('f')\nnotepad.write_draft('d')\nnotepad")
    assert results[0].outputs[0].text == "the notepad is empty"
    assert results[1].outputs[0].text == "0 [ ] a\n1 [ ] b\n0 - f\nd"


@pytest.mark.parametrize("call", ["mark_done(3)", "update_todo(3, 'x')", "remove_todo(3)", "remove_fact(3)"])
def test_an_item_that_is_not_there_is_named(call: str) -> None:
    results, _ = run(f"notepad.{call}")
    assert "there is no item 3 in the" in results[0].outputs[0].text


def test_items_of_the_older_form_keep_their_state() -> None:
    _, shown = run("notepad.plan = [{'text': 'a', 'done': True}, {'text': 'b', 'done': False}, 'c']")
    assert shown == "[x] a\n[ ] b\n[ ] c"


def test_a_long_answer_is_cut_and_not_lost() -> None:
    results, _ = run("submit_final_answer('a' * 10**6)")
    answer = read_state(results[0].state, State()).answer
    assert answer is not None
    assert answer == "a" * 20_000 + "…"
