"""Tools of real MCP servers, over standard input and output and over streamable HTTP."""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from nbrl.agent.errors import ToolError
from nbrl.agent.tools.base import describe
from nbrl.agent.tools.library import Library
from nbrl.agent.tools.mcp.schema import checker
from nbrl.agent.tools.mcp.servers import TrajectoryServers
from nbrl.agent.tools.mcp.transport import ANSWER_BYTES
from nbrl.agent.tools.settings import McpSettings, ToolSettings
from tests.agent.mcp_talk import PATIENT_S, cell, over_http, saying, settings, with_library

pytestmark = pytest.mark.process

LAB = str(Path(__file__).with_name("mcp_lab.py"))
STDIO = McpSettings(command=(sys.executable, LAB), environment=("LAB_TOKEN",), timeout_s=PATIENT_S)


@pytest.fixture(scope="module", autouse=True)
def token() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAB_TOKEN", "lab-secret")
        patch.setenv("OTHER_KEY", "other-secret")
        yield


@pytest.fixture(scope="module")
def http(token: None) -> Iterator[McpSettings]:
    with over_http(LAB) as (url, _):
        yield McpSettings(url=url, headers={"X-Token": "LAB_TOKEN"}, timeout_s=PATIENT_S)


@pytest.fixture(params=[pytest.param("stdio", marks=pytest.mark.more), "http"])
def server(request: pytest.FixtureRequest) -> McpSettings:
    chosen: McpSettings = STDIO if request.param == "stdio" else request.getfixturevalue("http")
    return chosen


def test_tools_come_with_their_schemas_and_answer_in_a_cell(server: McpSettings) -> None:
    async def work(library: Library) -> tuple[str, str]:
        tools = library.tools("", "qa")
        return describe(tools), await cell(library, "print(add(2), add(2, b=5), lab_odd_name(['x']))\nprint(add.__doc__)")

    words, said = with_library(settings(server, "search"), work)
    assert "search(query: str) -> str: looks up the corpus" in words
    assert "add(a: int, b: int = ...): Adds two numbers." in words
    assert "lab_search(query: str): Finds nothing." in words
    assert "lab_odd_name(items: list[str] | None = ...)" in words
    assert said.startswith("3 7 {'items': ['x']}\nAdds two numbers.\n\nAnd nothing else.\n\nArgs:\n    b: the second number")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("add('x')", "the argument a does not fit: 'x' is not of type 'integer'"),
        pytest.param("host_call('add', {})", "'a' is a required property", marks=pytest.mark.more),
        ("fail()", "failed with [LAB_TOKEN]"),
    ],
)
def test_wrong_arguments_and_failures_are_errors_in_the_cell(code: str, reason: str) -> None:
    async def work(library: Library) -> str:
        return await cell(library, f"try: {code}\nexcept Exception as error: print(error)\nprint(add(1))")

    said = with_library(settings(STDIO), work)
    assert reason in said
    assert "lab-secret" not in said
    assert said.endswith("\n2\n")


def test_a_key_in_an_answer_is_cut_out(server: McpSettings) -> None:
    said = with_library(settings(server), lambda library: cell(library, "print(tell())"))
    assert said == "['the token is [LAB_TOKEN]']\n"


def test_files_in_an_answer_are_read_and_links_are_named(server: McpSettings) -> None:
    said = with_library(settings(server), lambda library: cell(library, "print(attach())"))
    assert said == "noted\n<resource notes://2>\nthree <notes://3>\n"


def test_a_pattern_of_a_server_is_left_to_the_server() -> None:
    """On this text it would take the host longer than there is."""
    schema = {"type": "object", "properties": {"code": {"pattern": "^(a+)+$"}}, "additionalProperties": False}
    check = checker("tell", schema)
    assert check({"code": "a" * 60 + "b"}) is None
    assert "'more' was unexpected" in check({"more": 1}).message
    by_pattern = {"type": "object", "patternProperties": {"^(a+)+$": {}}, "additionalProperties": False}
    assert checker("tell", by_pattern)({"a" * 60 + "b": 1}) is None


def test_alternatives_without_end_are_left_to_the_server() -> None:
    """On these the host would take hours and all its memory."""
    levels = {f"d{level}": {"anyOf": [{"$ref": f"#/$defs/d{level + 1}"}] * 4} for level in range(14)}
    for defined in ({**levels, "d14": {"type": "string"}}, {"d0": {"$ref": "#/$defs/d0"}}):
        check = checker("tell", {"$defs": defined, "properties": {"a": {"$ref": "#/$defs/d0"}, "b": {"type": "string"}}})
        assert check({"a": 5}) is None
        assert check({"b": 5}).message == "5 is not of type 'string'"
    wide = {"properties": {"a": {"items": {"enum": list(range(5_000))}}}}
    assert checker("tell", wide)({"a": [-1] * 100_000}) is None


def test_a_schema_nested_too_deep_is_refused() -> None:
    deep: dict[str, Any] = {}
    for _ in range(3_000):
        deep = {"items": deep}
    with pytest.raises(ToolError, match="leave it out: it is nested too deep"):
        checker("tell", {"type": "object", "properties": {"a": deep}})


@pytest.mark.more
def test_a_server_gets_the_variables_that_are_named_and_no_other() -> None:
    said = with_library(settings(STDIO), lambda library: cell(library, "print(environment())"))
    assert "LAB_TOKEN" in said
    assert "OTHER_KEY" not in said


def test_a_shared_server_that_dies_is_an_error_in_the_cell_and_is_started_again() -> None:
    async def work(library: Library) -> str:
        code = "try: die()\nexcept Exception as error: print('told:', error)\nprint(add(1))"
        return await cell(library, code)

    said = with_library(settings(STDIO.model_copy(update={"per": "runner"})), work)
    assert said.startswith("told: the MCP server lab did not answer")
    assert said.endswith("\n2\n")


def test_a_shared_server_that_is_gone_is_an_error_in_the_cell_and_the_agent_goes_on() -> None:
    with over_http(LAB) as (url, process):

        async def gone(library: Library) -> str:
            process.kill()
            process.wait()
            code = "for _ in range(2):\n    try: add(1)\n    except Exception as error: print(error)\nprint('on')"
            return await cell(library, code)

        said = with_library(settings(McpSettings(url=url, per="runner", timeout_s=5.0)), gone)
    assert said.count("the MCP server lab") == 2
    assert said.endswith("on\n")


@pytest.mark.more
def test_a_slow_call_ends_and_the_next_one_is_served() -> None:
    slow = STDIO.model_copy(update={"timeout_s": 20.0})

    async def work(library: Library) -> str:
        return await cell(library, "try: sleep(100)\nexcept Exception as error: print(error)\nprint(lab_search('x'))")

    chosen = ToolSettings(default=("search", "lab"), mcp={"lab": slow})
    said = with_library(chosen, work)
    assert said == "the MCP server lab did not answer within 20 s\nnothing on x\n"


BESIDE = f"""
from concurrent.futures import ThreadPoolExecutor
def told(size):
    try: return len(flood(size))
    except Exception as error: return str(error)
with ThreadPoolExecutor(3) as threads:
    print(*threads.map(told, [1_000_000, {ANSWER_BYTES}, 10]), sep='; ')
print(add(1))
"""


def test_an_answer_too_long_is_an_error_in_its_cell_alone(server: McpSettings) -> None:
    said = with_library(settings(server), lambda library: cell(library, BESIDE))
    long, short, after = said.split("; ")
    assert (long, after) == ("1000000", "10\n2\n")
    assert "the MCP server lab did not answer: " in short
    assert str(ANSWER_BYTES) in short


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("'x' * 2**23", "Connection closed"),
        ("'{\"id\": 99, ' + 'x' * 2**23", "no answer within"),
        ("'{\"jsonrpc\": \"2.0\", \"id\": ' + str(asked) + ', ' + 'x' * 2**23", "larger than"),
        ("'{\"result\": \"' + 'x' * 2**23 + '\", \"id\": ' + str(asked) + ' }'", "larger than"),
        ("'no json'", "no answer within"),
    ],
)
def test_a_program_that_says_too_much_or_nothing_that_counts_is_refused(words: str, reason: str) -> None:
    server = saying(words, 3.0 if reason == "no answer within" else PATIENT_S)
    with pytest.raises(ToolError, match=reason):
        with_library(settings(server), lambda library: cell(library, "1"))


@pytest.mark.more
def test_a_shared_session_serves_many_calls_and_ends_with_the_library() -> None:
    me = psutil.Process()

    def servers() -> list[list[str]]:
        programs = [child.cmdline() for child in me.children(recursive=True)]
        return [line for line in programs if line == [sys.executable, LAB]]  # not their keepers, nor the one over HTTP

    async def work(library: Library) -> list[list[str]]:
        add = next(tool for tool in library.tools("", "qa", servers=TrajectoryServers()) if tool.name == "add")
        assert await asyncio.gather(*(add.call({"a": n}) for n in range(20))) == [n + 1 for n in range(20)]
        return servers()

    assert len(with_library(settings(STDIO.model_copy(update={"per": "runner"})), work)) == 1
    assert servers() == []


@pytest.mark.parametrize(
    ("server", "reason"),
    [
        (McpSettings(command=("/no/such/program",)), "the MCP server lab cannot be reached"),
        (McpSettings(command=(sys.executable, "-c", "pass")), "the MCP server lab cannot be reached"),
        (McpSettings(command=(sys.executable, "-c", "import time; time.sleep(60)"), timeout_s=1.0), "no answer within 1 s"),
        (McpSettings(url="http://127.0.0.1:1/mcp", timeout_s=5.0), "the MCP server lab cannot be reached"),
        (STDIO.model_copy(update={"environment": ("NOT_SET_HERE",)}), "set NOT_SET_HERE in the environment"),
        (STDIO.model_copy(update={"tools": ("add", "subtract")}), "has no tool 'subtract', it has add, search, odd-name"),
    ],
)
def test_a_server_that_cannot_be_set_up_is_an_error_before_any_work(server: McpSettings, reason: str) -> None:
    async def work(library: Library) -> None:
        raise AssertionError("it was set up")

    with pytest.raises(ToolError, match=reason):
        with_library(settings(server), work)


def test_some_of_its_tools_can_be_chosen() -> None:
    async def work(library: Library) -> list[str]:
        return [tool.name for tool in library.tools("", "qa")]

    assert with_library(settings(STDIO.model_copy(update={"tools": ("add",)})), work) == ["add"]
