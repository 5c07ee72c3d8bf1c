"""A function is a tool: what it says of itself, what it takes, and the source it becomes in a kernel."""

import ast
import asyncio
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from nbrl.agent.errors import ToolError
from nbrl.agent.kernels.inline import InlineKernel
from nbrl.agent.kernels.prelude import functions, prelude
from nbrl.agent.tools.base import RECORDED_CHARS, SHORT_CHARS, Parameter, Tool, Toolbox, describe
from nbrl.agent.tools.corpus.corpus import Corpus, SearchTool
from nbrl.agent.tools.functions import FunctionTool, tool


@tool
async def weather(town: str, days: int = 3, unit: Literal["C", "F"] = "C", tags: list[str] | None = None) -> str:
    """Forecasts the weather
    of a town.

    It knows {braces} and 'quotes'.

    Args:
        town: its name,
            as people there say it
        days (int): how many
    """
    return f"{town} {days} {unit} {tags}"


class Point(BaseModel):
    x: int


@tool
def plain(points: list[Point], note: Annotated[str, Field(max_length=5)] = "") -> dict[str, Point]:
    """Runs in a thread."""
    return {"first": points[0]}


def call(which: Tool, arguments: dict[str, Any]) -> Any:
    return asyncio.run(which.call(arguments))


def run(cell: str, *tools: Tool) -> tuple[str, Toolbox]:
    """What a cell printed, or its error."""

    async def work() -> tuple[str, Toolbox]:
        toolbox = Toolbox(tools)
        result = await InlineKernel(prelude(tools), toolbox.call).execute(cell, 10.0)
        return "".join(output.text for output in result.outputs), toolbox

    return asyncio.run(work())


def test_all_words_come_from_the_function() -> None:
    assert (weather.name, weather.summary) == ("weather", "Forecasts the weather of a town.")
    assert weather.details == "It knows {braces} and 'quotes'."
    assert describe([weather, SearchTool(Corpus.in_memory(["a word"]))]) == (
        "weather(town: str, days: int = 3, unit: Literal['C', 'F'] = 'C', tags: list[str] | None = None) -> str: "
        "Forecasts the weather of a town.\n"
        "search(query: str) -> str: looks up the corpus and returns what fits best"
    )
    assert weather.parameters[0].help == "its name, as people there say it"
    assert weather.schema["required"] == ["town"]
    assert weather.schema["additionalProperties"] is False
    assert weather.schema["properties"]["days"] == {
        "default": 3,
        "description": "how many",
        "title": "Days",
        "type": "integer",
    }


def test_defaults_work_and_answers_become_json() -> None:
    assert call(weather, {"town": "Tilo"}) == "Tilo 3 C None"
    assert call(plain, {"points": [{"x": 1}]}) == {"first": {"x": 1}}
    assert asyncio.run(weather("Tilo", days=1)) == "Tilo 1 C None"


@pytest.mark.parametrize(
    ("which", "arguments", "reason"),
    [
        (weather, {}, "the argument town is missing"),
        (weather, {"town": 5}, "the argument town does not fit: input should be a valid string"),
        (weather, {"town": "a", "days": "many"}, "the argument days does not fit"),
        (weather, {"town": "a", "unit": "K"}, "the argument unit does not fit"),
        (weather, {"town": "a", "evil": 1}, "there is no argument 'evil'; it takes town, days, unit, tags"),
        (weather, {"town": "a", "tags": ["a", 1]}, r"the argument tags.*1 does not fit"),
        (weather, {"days": [], "unit": 3}, "more faults"),
        (plain, {"points": [{"x": "a"}]}, r"the argument points\.0\.x does not fit"),
        (plain, {"points": [], "note": "too long"}, "at most 5"),
    ],
)
def test_arguments_that_do_not_fit_are_one_sentence(which: Tool, arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as caught:
        call(which, arguments)
    assert "\n" not in str(caught.value)


@given(st.dictionaries(st.text(max_size=10), st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=5)))
def test_no_arguments_bring_up_anything_but_a_short_value_error(arguments: dict[str, Any]) -> None:
    raised: ValueError | None = None
    try:
        call(weather, arguments)
    except ValueError as error:
        raised = error
    assert len(str(raised)) < 1000


def test_huge_arguments_give_a_short_error() -> None:
    with pytest.raises(ValueError, match="does not fit") as caught:
        call(weather, {"town": ["x" * 10**6] * 3, "y" * 10**6: 1})
    assert len(str(caught.value)) < 1000


def no_docstring(a: str) -> None: ...


def untyped(a) -> None:  # type: ignore[no-untyped-def]
    """Text."""


def starred(*a: str) -> None:
    """Text."""


def odd_default(a: object = object()) -> None:
    """Text."""


def odd_type(a: asyncio.Event) -> None:
    """Text."""


def host_call_parameter(host_call: str) -> None:
    """Text."""


@pytest.mark.parametrize("function", [no_docstring, untyped, starred, odd_default, odd_type, host_call_parameter])
def test_a_function_that_cannot_be_a_tool_is_refused(function: Any) -> None:
    with pytest.raises(ToolError):
        tool(function)


@pytest.mark.parametrize(
    "name", ["", "1a", "a b", "class", "print", "notepad", "submit_final_answer", "_x", "é", "host_call", "a\n"]
)
def test_names_that_python_or_the_notebook_use_are_refused(name: str) -> None:
    with pytest.raises(ToolError, match="cannot be a tool's name"):
        FunctionTool(_nothing, name or " ")


def test_a_cell_sees_a_real_function() -> None:
    cell = "import inspect\nprint(inspect.signature(weather))\nprint(weather.__doc__)\nprint(weather('Tilo', unit='F'))"
    said, _ = run(cell, weather)
    assert said.splitlines()[0] == (
        "(town: str, days: int = 3, unit: \"Literal['C', 'F']\" = 'C', tags: list[str] | None = None) -> str"
    )
    assert "Forecasts the weather of a town.\n\nIt knows {braces}" in said
    assert "    town: its name, as people there say it" in said
    assert said.splitlines()[-1] == "Tilo 3 F None"


def test_a_parameter_without_a_default_is_left_out_of_the_call() -> None:
    class Echo:
        name, summary, details, returns = "echo", "says it again", "", ""
        parameters = (Parameter("key", "the-key"), Parameter("value", "value", required=False))
        schema: dict[str, Any] = {}  # noqa: RUF012

        async def call(self, arguments: dict[str, Any]) -> Any:
            return arguments

    said, _ = run("print(echo(1), echo(1, value=None))", Echo())
    assert said == "{'the-key': 1} {'the-key': 1, 'value': None}\n"


@given(st.text(max_size=60), st.text(max_size=60), st.text(max_size=20))
def test_nothing_a_tool_says_of_itself_runs(summary: str, text: str, key: str) -> None:
    class Evil:
        name, returns = "evil", f"str'); {text}"
        details = text
        parameters = (Parameter("a", key, kind=text, help=text), Parameter("b", text, required=False, default=text))
        schema: dict[str, Any] = {}  # noqa: RUF012

        def __init__(self) -> None:
            self.summary = summary

        async def call(self, arguments: dict[str, Any]) -> Any:
            return None

    # A kind of plain words alone may be no Python; any other is a string, whatever stands in it.
    source = functions([Evil()]) if set(text) - set("strinloabecdj[], |") else "def evil():\n    return"
    (only,) = ast.parse(source).body
    assert isinstance(only, ast.FunctionDef)
    assert len(only.body) <= 2
    assert isinstance(only.body[-1], ast.Return)


def test_a_full_answer_is_recorded_and_a_larger_one_is_marked() -> None:
    @tool
    def fill(size: int) -> str:
        """Gives so many letters."""
        return "x" * size

    _, toolbox = run(f"fill(100_000)\nfill({RECORDED_CHARS})\nfill('a')", fill)
    whole, cut, failed = toolbox.take_calls()
    assert (len(whole.result), whole.complete, whole.ok) == (100_002, True, True)
    assert (len(cut.result), cut.complete, cut.ok) == (SHORT_CHARS, False, True)
    assert failed.ok is False
    assert failed.result.startswith('"ValueError: the argument size does not fit')


def test_what_is_recorded_of_one_trajectory_is_bounded_and_the_rest_counted() -> None:
    @tool
    def fill() -> str:
        """Gives many letters."""
        return "x" * 900_000

    _, toolbox = run("for _ in range(70): fill()", fill)
    calls = toolbox.take_calls()
    assert [call.complete for call in calls] == [True] * 9 + [False] * 55
    assert toolbox.take_unrecorded() == 6
    assert toolbox.take_unrecorded() == 0


def test_an_answer_that_is_not_json_is_an_error_in_the_cell() -> None:
    class Odd(FunctionTool):
        async def call(self, arguments: dict[str, Any]) -> Any:
            return {1, 2}

    said, toolbox = run("odd()", Odd(_nothing, "odd"))
    assert "not JSON serializable" in said
    assert toolbox.take_calls()[0].ok is False


def _nothing() -> None:
    """Does nothing."""
