"""The agent's loop on a real sandboxed kernel, with cells that lie about their state."""

import pytest

from nbrl.agent.context.notepad import State, read_state
from nbrl.agent.kernel import CellResult
from nbrl.agent.kernels.prelude import prelude
from nbrl.agent.tools.base import Tool, Toolbox
from nbrl.agent.tools.corpus.corpus import Corpus, SearchTool
from nbrl.sandbox.kernel import SandboxKernel
from nbrl.tasks.rollout.notebooks import SandboxedKernel, handlers
from tests.sandbox.sandbox_lab import Lab

pytestmark = pytest.mark.sandbox

TOOLS: list[Tool] = [SearchTool(Corpus.in_memory(["Tilo was born in Keldra."]))]


def run(lab: Lab, *cells: str) -> tuple[list[CellResult], Toolbox]:
    toolbox = Toolbox(TOOLS)

    async def body(kernel: SandboxKernel) -> list[CellResult]:
        wired = SandboxedKernel(kernel)
        return [await wired.execute(cell, 20.0) for cell in cells]

    return lab.with_kernel(body, tools=handlers(toolbox), prelude=prelude(TOOLS)), toolbox


def test_answer_notepad_and_tools_reach_the_host(shared_lab: Lab) -> None:
    results, toolbox = run(
        shared_lab, "found = search('Tilo born')\nprint(found)\nnotepad.add_facts(found)", "submit_final_answer('Keldra')"
    )
    assert results[0].outputs[0].text == "Tilo was born in Keldra.\n"
    assert read_state(results[1].state, State()).answer == "Keldra"
    assert read_state(results[1].state, State()).notepad.facts == ["Tilo was born in Keldra."]
    assert [call.name for call in toolbox.take_calls()] == ["search"]


def test_the_agent_can_answer_and_call_its_tools_whatever_a_cell_did_to_their_names(shared_lab: Lab) -> None:
    slips = ["search = submit_final_answer = '42'", "del search", "%reset -f", "globals().clear()", "notepad = None\ndel notepad"]
    results, toolbox = run(shared_lab, *slips, "notepad.add_facts(search('Tilo'))", "submit_final_answer('Keldra')")
    assert [result.status for result in results] == ["ok"] * len(results)
    state = read_state(results[-1].state, State())
    assert (state.answer, state.notepad.facts) == ("Keldra", ["Tilo was born in Keldra."])
    assert [call.name for call in toolbox.take_calls()] == ["search"]


def test_no_traceback_is_written_that_is_not_read(shared_lab: Lab) -> None:
    results, _ = run(
        shared_lab, "def f(n): return f(n + 1)\ntry: f(0)\nexcept RecursionError: get_ipython().showtraceback()\nf(0)"
    )
    shown = "".join(output.text for output in results[0].outputs)
    assert shown.count("RecursionError: maximum recursion depth exceeded") == 2
    assert len(shown) < 300


def test_a_cell_that_fails_still_reports_its_answer(shared_lab: Lab) -> None:
    results, _ = run(shared_lab, "submit_final_answer(7)\n1 / 0")
    assert results[0].status == "error"
    assert results[0].outputs[-1].text == "ZeroDivisionError: division by zero"
    assert read_state(results[0].state, State()).answer == "7"


@pytest.mark.parametrize(
    "lie",
    [
        "None",
        "{'state': None}",
        "{'state': {'status': 'ok', 'data': []}}",
        "{'state': {'status': 'ok', 'data': {'application/json': 5}}}",
        "{'state': {'status': 'ok', 'data': {'application/json': {'answer': ['x'], 'notepad': 3}}}}",
        "{'state': {'status': 'ok', 'data': {'application/json': {'answer': 'x' * 10**6}}}}",
    ],
)
def test_a_forged_reply_is_data_and_the_notepad_in_view_stays(shared_lab: Lab, lie: str) -> None:
    results, _ = run(shared_lab, f"get_ipython().user_expressions = lambda e: {lie}")
    before = State()
    assert read_state(results[0].state, before) is before


def test_a_reply_nested_too_deep_is_no_state(shared_lab: Lab) -> None:
    deep = "d = []\nfor _ in range(900):\n    d = [d]\nget_ipython().user_expressions = lambda e: {'state': {'data': d}}"
    results, _ = run(shared_lab, deep)
    assert read_state(results[0].state, State()).answer is None


def test_text_that_cannot_be_encoded_is_replaced(shared_lab: Lab) -> None:
    results, _ = run(shared_lab, "submit_final_answer('a\\ud800b')\nprint('c\\ud800d')")
    assert results[0].status == "ok"
    assert read_state(results[0].state, State()).answer == "a?b"
    assert "d" in results[0].outputs[0].text


@pytest.mark.more
def test_a_flood_of_calls_is_recorded_within_bounds(shared_lab: Lab) -> None:
    results, toolbox = run(shared_lab, "for i in range(300):\n    search('Tilo')")
    assert results[0].status == "ok"
    assert len(toolbox.take_calls()) == 64
