"""MCP servers that hold to their own schemas and to the protocol only in part: the agent goes on."""

import json
import sys
from typing import Any

import pytest
from mcp.types import InitializeResult, JSONRPCError, JSONRPCResponse

from nbrl.agent.errors import ToolError
from nbrl.agent.tools.base import describe
from nbrl.agent.tools.library import Library
from nbrl.agent.tools.mcp.mended import mend, readable
from nbrl.agent.tools.settings import McpSettings
from tests.agent.mcp_talk import PATIENT_S, cell, saying, settings, with_library

pytestmark = pytest.mark.process

LAX = """
import json, sys
tools, results = json.loads(sys.argv[1])
calls = 0
for line in sys.stdin:
    asked = json.loads(line)
    match asked.get("method"):
        case "initialize":
            version = asked["params"]["protocolVersion"]
            said = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": {"name": "lax", "version": "1"}}
        case "tools/list":
            said = {"tools": tools}
        case "tools/call":
            calls += 1
            counted = {"content": [{"type": "text", "text": f"call {calls}"}]}
            said = results.get(asked["params"]["name"], counted)
        case _:
            said = None
    if "id" in asked:
        ended = {"error": {"code": -32601, "message": "no such method"}} if said is None else {"result": said}
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **ended}), flush=True)
"""
OPEN = {"type": "object", "properties": {}}
N = {"type": "integer"}


def lax(tools: list[dict[str, Any]], code: str, results: dict[str, Any] | None = None) -> tuple[str, str]:
    """What is said of the tools of a server that describes and answers them so, and what `code` prints with them."""
    server = McpSettings(command=(sys.executable, "-c", LAX, json.dumps([tools, results or {}])), timeout_s=PATIENT_S)

    async def work(library: Library) -> tuple[str, str]:
        return describe(library.tools("", "qa")), await cell(library, code)

    return with_library(settings(server), work)


def test_answers_against_their_schema_or_the_protocol_are_answers_and_end_no_session() -> None:
    promised = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    text = [{"type": "text", "text": "well"}]
    answers = {
        "missing": {"content": text},
        "wrong": {"content": [], "structuredContent": {"ok": "maybe"}},
        "bare": {"structuredContent": {"ok": True}},
        "listed": {"content": [], "structuredContent": [1, 2]},
        "strange": {"content": [{"type": "table", "rows": [1]}]},
        "none": {"content": None},
        "part": {"content": [{"type": "text", "text": None}, {"type": "image"}]},
        "broken": {"content": 5},
        "marked": {"content": text, "isError": None, "_meta": "x"},
        "rated": {"content": [{"type": "text", "text": "well", "annotations": {"priority": 5}, "_meta": 1}]},
        "linked": {"content": [{"type": "resource_link", "uri": "a:b", "name": "n", "size": "big"}], "isError": "false"},
        "held": {"content": [{"type": "resource", "resource": {"uri": "a:b", "text": "held", "mimeType": 1}}]},
        "other": {"value": 7},
        "empty": {},
    }
    tools = [{"name": name, "inputSchema": OPEN, "outputSchema": promised} for name in [*answers, "count"]]
    code = f"print(count())\nfor f in ({', '.join(answers)}): print(f())\n"
    _, said = lax(tools, f"{code}print(count())", answers)
    lines = said.splitlines()
    assert lines[:6] == ["call 1", "well", "{'ok': 'maybe'}", "{'ok': True}", "[1, 2]", '{"type": "table", "rows": [1]}']
    assert lines[6:] == [
        "",
        '{"type": "text", "text": null}',
        '{"type": "image"}',
        "5",
        "well",
        "well",
        "n <a:b>",
        "held",
        '{"value": 7}',
        "",
        "call 16",
    ]


def test_text_that_says_more_than_the_structured_answer_stands_beside_it() -> None:
    def answer(structured: Any, *texts: str) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": text} for text in texts], "structuredContent": structured}

    done = {"state": "done"}
    answers = {
        "report": answer(done, "Sales rose by 7 %."),
        "same": answer(done, '{\n "state": "done"}'),
        "items": answer({"result": ["a", 2]}, "a", "2"),
        "empty": answer({}, "only text"),
        "alone": answer(done),
    }
    _, said = lax(
        [{"name": name, "inputSchema": OPEN} for name in answers], f"for f in ({', '.join(answers)}): print(f())", answers
    )
    assert said.splitlines() == [
        "{'text': 'Sales rose by 7 %.', 'structured': {'state': 'done'}}",
        "{'state': 'done'}",
        "['a', 2]",
        "only text",
        "{'state': 'done'}",
    ]


def test_tools_whose_names_come_out_the_same_are_numbered_and_told_apart() -> None:
    names = ["получить", "удалить", "a" * 64 + "_get", "a" * 64 + "_put", "get-user", "get.user"]
    words, said = lax([{"name": name, "inputSchema": OPEN} for name in names], "print(lab_get_user(), lab_unnamed_2())")
    assert said == "call 1 call 2\n"
    assert len({line.partition("(")[0] for line in words.splitlines()}) == len(names)
    assert "lab_unnamed_2(): the tool удалить of lab (its own name: удалить)" in words


def test_a_schema_that_is_none_costs_its_check_and_not_the_server() -> None:
    old = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "exclusiveMinimum": True}}, "required": ["n"]}
    either = {"anyOf": [{"properties": {"a": {"type": "string"}}, "required": ["a"]}, {"properties": {"b": {"type": "integer"}}}]}
    both = {"allOf": [{"properties": {"a": {"type": "string"}}, "required": ["a"]}, {"properties": {"b": {}}}]}
    schemas = {
        "old": old,
        "either": either,
        "both": both,
        "null": {"type": "object", "properties": None},
        "bare": {},
        "none": None,
        "one_bad": {
            "type": "object",
            "properties": {"a": {"type": "string"}, "b": 5, "c": {"type": "text"}},
            "required": ["a", 7],
        },
        "referred": {"$ref": "#/$defs/Arguments", "$defs": {"Arguments": {"properties": {"n": {"$ref": "#/$defs/N"}}}, "N": N}},
        "endless": {"$ref": "#"},
    }
    tools: list[Any] = [{"name": name, "inputSchema": schema, "title": 5} for name, schema in schemas.items()]
    tools += [{"name": 7}, "no tool"]
    words, said = lax(
        tools, "print(old(3), either(b=1), both('x'), null(), bare(), none(), one_bad('x'), referred(2), endless())"
    )
    assert said == " ".join(f"call {number}" for number in range(1, 10)) + "\n"
    assert "one_bad(a: str, b: object = ..., c: object = ...)" in words
    assert "referred(n: int = ...)" in words
    assert "either(a: str = ..., b: int = ...)" in words
    assert "both(a: str, b: object = ...)" in words


@pytest.mark.parametrize("info", [None, {"name": "lax", "version": 1}, "lax"])
def test_a_server_that_says_little_of_itself_is_opened(info: Any) -> None:
    result: dict[str, Any] = {
        "protocolVersion": "2025-06-18",
        "capabilities": {"tools": True},
        "serverInfo": info,
        "instructions": 5,
    }
    if info is None:
        del result["serverInfo"]
    assert InitializeResult.model_validate(mend(result)).capabilities.tools is not None


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"jsonrpc": "2.0", "id": 3, "error": {"code": "busy", "message": "not now"}}', "not now"),
        (b'{"jsonrpc": "2.0", "id": 3, "error": {"code": -32601}}', '{"code": -32601}'),
        (b'{"jsonrpc": "2.0", "id": 3, "error": "not now"}', "not now"),
        (b'{"id": 3, "result": {"content": []}}', {"content": []}),
        (b'{"jsonrpc": "2.0", "id": 3, "result": "7"}', {"content": "7"}),
        (b'{"jsonrpc": "2.0", "id": 3, "result": {"content": "half \\ud800"}}', {"content": "half ?"}),
        (b'{"jsonrpc": "2.0", "id": 3, "result": {"content": ', "the answer is no message of the protocol"),
        (b'{"jsonrpc": "2.0", "id": 3}', "the answer is no message of the protocol"),
    ],
)
def test_a_line_that_the_client_does_not_read_answers_the_request_that_it_names(line: bytes, said: Any) -> None:
    message = readable(line)
    assert isinstance(message, JSONRPCError | JSONRPCResponse)
    assert (message.id, message.error.message if isinstance(message, JSONRPCError) else message.result) == (3, said)


@pytest.mark.parametrize("line", [b"starting", b"[1]", b"[" * 200_000, b'{"level": "info"}'])
def test_a_line_that_names_no_request_answers_none(line: bytes) -> None:
    assert readable(line) is None


def test_an_error_that_is_a_word_fails_its_call_with_it() -> None:
    server = saying("json.dumps({'id': asked, 'error': 'not now'})", PATIENT_S)
    with pytest.raises(ToolError, match="not now"):
        with_library(settings(server), lambda library: cell(library, "1"))
