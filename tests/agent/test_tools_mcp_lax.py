"""MCP servers that hold to their own schemas and to the protocol only in part: the agent goes on."""

import json
import sys
from typing import Any

import pytest

from nbrl.agent.tools.base import describe
from nbrl.agent.tools.library import Library
from nbrl.agent.tools.settings import McpSettings
from tests.agent.mcp_talk import PATIENT_S, cell, settings, with_library

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
    }
    tools = [{"name": name, "inputSchema": OPEN, "outputSchema": promised} for name in [*answers, "count"]]
    code = "print(count())\nfor f in (missing, wrong, bare, listed, strange, none, part, broken): print(f())\n"
    _, said = lax(tools, f"{code}print(count())", answers)
    lines = said.splitlines()
    assert lines[:6] == ["call 1", "well", "{'ok': 'maybe'}", "{'ok': True}", "[1, 2]", '{"type": "table", "rows": [1]}']
    assert lines[6:] == ["", '{"type": "text", "text": null}', '{"type": "image"}', "5", "call 10"]


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
