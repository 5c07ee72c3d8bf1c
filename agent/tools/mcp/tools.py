"""Tools of a Model Context Protocol server as tools of the agent, by the schemas that the server gives."""

import copy
import re
from collections.abc import Callable, Container, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from nbrl.agent.errors import ToolError
from nbrl.agent.tools import names
from nbrl.agent.tools.base import Parameter
from nbrl.agent.tools.mcp.schema import checker, local
from nbrl.agent.tools.names import is_plain, numbered, plain, plain_names, reserved

if TYPE_CHECKING:
    import mcp

SUMMARY_CHARS, DETAILS_CHARS, HELP_CHARS, NAME_CHARS = 300, 4_000, 300, 100
DEPTH = 4  # of alternatives of the arguments within alternatives


class SessionCaller(Protocol):
    """What answers calls of a server's tools."""

    async def call(self, tool: str, arguments: dict[str, Any]) -> Any: ...


class McpTool:
    """nbrl.agent.tools.base.Tool of one tool of a server; only one that is bound to a session can be called."""

    def __init__(self, server: str, name: str, tool: "mcp.Tool") -> None:
        self.name, self._asked = name, tool.name
        self._session: SessionCaller | None = None
        words = (tool.description or tool.title or f"the tool {tool.name[:60]} of {server}").strip()
        first, _, rest = words.partition("\n")
        self.summary, self.details = " ".join(first.split())[:SUMMARY_CHARS], rest.strip()[:DETAILS_CHARS]
        if name not in (tool.name, plain(f"{server}_{tool.name}")) or not tool.name.isascii():
            self.summary += f" (its own name: {' '.join(tool.name.split())[:NAME_CHARS]})"
        self.schema, self.returns = tool.input_schema, ""
        self.parameters = _parameters(tool.input_schema)
        self._check: Callable[[dict[str, Any]], Any] = _anything
        try:
            self._check = checker(self.name, tool.input_schema)
        except ToolError:  # of a schema that is none, which the server has to check by
            self.schema = {"type": "object"}

    def bound(self, session: SessionCaller) -> "McpTool":
        """Return the same tool, with calls that the session answers."""
        other = copy.copy(self)
        other._session = session
        return other

    async def call(self, arguments: dict[str, Any]) -> Any:
        """Raises ValueError for arguments that do not fit the schema, and what the session raises."""
        fault = self._check(arguments)
        if fault is not None:
            place = ".".join(map(str, fault.absolute_path))[:100]
            raise ValueError(f"{f'the argument {place} does not fit: ' if place else ''}{fault.message[:300]}")
        if self._session is None:
            raise RuntimeError(f"{self.name} belongs to no trajectory")
        return await self._session.call(self._asked, arguments)


def mcp_tools(server: str, listed: "Iterable[mcp.Tool]", wanted: tuple[str, ...] | None, taken: Container[str]) -> list[McpTool]:
    """Return the `wanted` tools of those that a server lists, all when None.

    One whose name is `taken` gets the server's name as a prefix. Of tools whose names come out the same each further one gets a
    number. Raises ToolError when one that is wanted is not listed.
    """
    offered = {tool.name: tool for tool in listed}
    if missing := [name for name in wanted or () if name not in offered]:
        raise ToolError(f"the MCP server {server} has no tool {missing[0]!r}, it has {', '.join(offered) or 'none'}")
    chosen = [tool for name, tool in offered.items() if wanted is None or name in wanted]
    tools: list[McpTool] = []
    for tool in chosen:
        free = is_plain(tool.name) and tool.name not in reserved() and tool.name not in taken
        own = tool.name if re.search("[A-Za-z0-9]", tool.name) else plain(tool.name)
        wanted_name = tool.name if free else plain(f"{server}_{own}")
        name = numbered(wanted_name, lambda name: name in taken or name in (made.name for made in tools))
        tools.append(McpTool(server, name, tool))
    return tools


def _anything(arguments: dict[str, Any]) -> None:
    """Find no fault."""


def _properties(given: Any, root: Any, depth: int = 0) -> tuple[dict[str, Any], list[str]]:
    """Return the properties of an object and which are required; those that an alternative names are not."""
    schema = local(given, root)
    if not isinstance(schema, dict) or depth > DEPTH:
        return {}, []
    found, required = schema.get("properties"), schema.get("required")
    properties = dict(found) if isinstance(found, dict) else {}
    needed = [key for key in required if isinstance(key, str)] if isinstance(required, list) else []
    for word in ("allOf", "anyOf", "oneOf"):
        parts = schema.get(word)
        for part in parts if isinstance(parts, list) else ():
            more, also = _properties(part, root, depth + 1)
            properties |= {key: more[key] for key in more if key not in properties}
            needed += also if word == "allOf" else []
    return properties, needed


def _parameters(schema: dict[str, Any]) -> tuple[Parameter, ...]:
    properties, needed = _properties(schema, schema)
    required = [key for key in dict.fromkeys(needed) if key in properties]
    names = plain_names([*required, *(key for key in properties if key not in required)])
    return tuple(_parameter(name, key, local(properties[key], schema), key in required) for key, name in names.items())


def _parameter(name: str, key: str, schema: Any, required: bool) -> Parameter:
    words = schema.get("description") if isinstance(schema, dict) else None
    words = " ".join(words.split())[:HELP_CHARS] if isinstance(words, str) else ""
    return Parameter(name, key, names.of_schema(schema), words, required)
