"""The actions of an OpenEnv environment as tools, by the JSON schema that its server gives of them.

A schema is hostile as one of an MCP server is, and its tools are made by the same code.
"""

import re
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from nbrl.agent.errors import SessionError
from nbrl.agent.tools.mcp.schema import local
from nbrl.agent.tools.mcp.tools import McpTool, mcp_tools

MOST, DEPTH = 200, 4  # kinds of actions, and of alternatives within alternatives
STATE = "state"
_HOSTS = ("metadata",)  # of every action and observation: nothing that an agent decides
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


@dataclass(frozen=True)
class ActionKind:
    """One kind of action: what its tool is made of, and how arguments become the action."""

    name: str
    words: str
    schema: dict[str, Any]
    fixed: Mapping[str, Any]
    called: str = ""

    def action(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the action with these arguments; of a tool that the environment calls by name, the call of it."""
        return {**self.fixed, "arguments": dict(arguments)} if self.called else {**arguments, **self.fixed}


def action_kinds(schema: Mapping[str, Any], observed: Mapping[str, Any], tools: object = None) -> list[ActionKind]:
    """Return the kinds of actions of a schema; `tools` are those that the environment lists where actions call them by name.

    Raises SessionError if there is none, or more than MOST.
    """
    if calls_tools(schema):
        kinds = [_of_tool(each) for each in tools if isinstance(each, dict)] if isinstance(tools, list) else []
    else:
        kinds = [_of_schema(each, schema, observed) for each in _alternatives(schema, schema)]
    if not 0 < len(kinds) <= MOST:
        raise SessionError(f"its server names {len(kinds)} kinds of actions, and there must be 1 to {MOST}")
    names: dict[str, int] = {}
    numbered = []
    for kind in kinds:
        names[kind.name] = count = names.get(kind.name, 0) + 1
        numbered.append(
            kind if count == 1 else ActionKind(f"{kind.name}_{count}", kind.words, kind.schema, kind.fixed, kind.called)
        )
    return numbered


def action_tools(environment: str, kinds: list[ActionKind], taken: Container[str], state: bool) -> list[McpTool]:
    """Return a tool for each kind of action, none with a name that is `taken`, and one that shows the state where that is due."""
    import mcp

    listed: list[mcp.Tool] = [mcp.Tool(name=kind.name, description=kind.words, input_schema=kind.schema) for kind in kinds]
    if state:
        shown = "Shows the environment's state."
        listed.append(mcp.Tool(name=STATE, description=shown, input_schema={"type": "object", "additionalProperties": False}))
    return mcp_tools(environment, listed, None, taken)


def calls_tools(schema: Mapping[str, Any]) -> bool:
    """Return whether an action is the call of a tool that the environment lists (its MCP environments)."""
    properties = schema.get("properties")
    return (
        isinstance(properties, dict)
        and {"type", "tool_name", "arguments"} <= properties.keys()
        and _only(properties["type"]) == ["call_tool"]
    )


def _alternatives(given: Any, root: Mapping[str, Any], depth: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the schemas of the alternatives of an action, which may have alternatives of their own."""
    schema = local(given, root)
    if not isinstance(schema, dict):
        return
    for word in ("oneOf", "anyOf"):
        parts = schema.get(word)
        if isinstance(parts, list) and depth < DEPTH:
            for part in parts[: MOST + 1]:
                yield from _alternatives(part, root, depth + 1)
            return
    yield schema


def _of_schema(schema: dict[str, Any], root: Mapping[str, Any], observed: Mapping[str, Any]) -> ActionKind:
    found, required = schema.get("properties"), schema.get("required")
    properties = {key: each for key, each in found.items() if key not in _HOSTS} if isinstance(found, dict) else {}
    fixed = {key: only[0] for key, each in properties.items() if (only := _only(local(each, root)))}
    left = {key: each for key, each in properties.items() if key not in fixed}
    needed = [key for key in required if key in left] if isinstance(required, list) else []
    taken = {"type": "object", "properties": left, "required": needed, "additionalProperties": False}
    if isinstance(defined := root.get("$defs"), dict):
        taken["$defs"] = defined
    title = schema.get("title")
    name = next((value for value in fixed.values() if isinstance(value, str)), "") or _snake(
        title if isinstance(title, str) else ""
    )
    words = schema.get("description")
    words = words.strip() if isinstance(words, str) else ""
    return ActionKind(name, "\n\n".join(filter(None, [words or f"Takes the action {name}.", _returns(observed)])), taken, fixed)


def _of_tool(tool: dict[str, Any]) -> ActionKind:
    name, words = tool.get("name"), tool.get("description")
    schema = tool.get("input_schema", tool.get("inputSchema"))
    name = name if isinstance(name, str) else ""
    return ActionKind(
        name or "step",
        words if isinstance(words, str) and words.strip() else f"Calls {name}.",
        schema if isinstance(schema, dict) else {"type": "object"},
        {"type": "call_tool", "tool_name": name},
        called=name,
    )


def _only(schema: Any) -> list[Any]:
    """Return a list of the only value that a schema allows; an empty one if there are others."""
    if not isinstance(schema, dict):
        return []
    if "const" in schema:
        return [schema["const"]]
    allowed = schema.get("enum")
    return allowed if isinstance(allowed, list) and len(allowed) == 1 else []


def _snake(title: str) -> str:
    """Return the name of an action whose class has this name."""
    words = _CAMEL.split(re.sub(r"Action$", "", title.strip()))
    return "_".join(words).lower()[:60] or "step"


def _returns(observed: Mapping[str, Any]) -> str:
    """Return what an observation has, in words."""
    properties = observed.get("properties")
    if not isinstance(properties, dict):
        return ""
    lines = []
    for key, given in list(properties.items())[:50]:
        schema = local(given, observed)
        if key not in (*_HOSTS, "reward", "done") and isinstance(schema, dict):
            words = schema.get("description")
            lines.append(f"    {key}: {' '.join(words.split()) if isinstance(words, str) else schema.get('type', '')}"[:300])
    return "\n".join(["Returns a dict:", *lines, "    done: whether the task has ended"])
