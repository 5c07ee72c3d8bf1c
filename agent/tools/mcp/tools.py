"""Tools of a Model Context Protocol server as tools of the agent, by the schemas that the server gives."""

import re
from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Any

from nbrl.agent.errors import ToolError
from nbrl.agent.http.json_service import ServiceError
from nbrl.agent.tools import names
from nbrl.agent.tools.base import Parameter
from nbrl.agent.tools.mcp.schema import checker, local
from nbrl.agent.tools.mcp.session import McpSession
from nbrl.agent.tools.names import is_plain, numbered, plain, plain_names, reserved

if TYPE_CHECKING:
    import mcp

SUMMARY_CHARS, DETAILS_CHARS, HELP_CHARS, NAME_CHARS = 300, 4_000, 300, 100
DEPTH = 4  # of alternatives of the arguments within alternatives


class McpTool:
    """nbrl.agent.tools.base.Tool of one tool of a server."""

    def __init__(self, session: McpSession, name: str, tool: "mcp.Tool") -> None:
        self.name, self._session, self._asked = name, session, tool.name
        words = (tool.description or tool.title or f"the tool {tool.name[:60]} of {session.name}").strip()
        first, _, rest = words.partition("\n")
        self.summary, self.details = " ".join(first.split())[:SUMMARY_CHARS], rest.strip()[:DETAILS_CHARS]
        if name not in (tool.name, plain(f"{session.name}_{tool.name}")) or not tool.name.isascii():
            self.summary += f" (its own name: {' '.join(tool.name.split())[:NAME_CHARS]})"
        self.schema, self.returns = tool.input_schema, ""
        self.parameters = _parameters(tool.input_schema)
        self._check: Callable[[dict[str, Any]], Any] = _anything
        try:
            self._check = checker(self.name, tool.input_schema)
        except ToolError:  # of a schema that is none, which the server has to check by
            self.schema = {"type": "object"}

    async def call(self, arguments: dict[str, Any]) -> Any:
        """Raises ValueError for arguments that do not fit the schema, ServiceError when the server does not answer."""
        fault = self._check(arguments)
        if fault is not None:
            place = ".".join(map(str, fault.absolute_path))[:100]
            raise ValueError(f"{f'the argument {place} does not fit: ' if place else ''}{fault.message[:300]}")
        return await self._session.call(self._asked, arguments)


async def mcp_tools(session: McpSession, wanted: tuple[str, ...] | None, taken: Container[str]) -> list[McpTool]:
    """Return the `wanted` tools of the server, all when None. One whose name is `taken` gets the server's name as a prefix.

    Of tools whose names come out the same each further one gets a number. Raises ToolError when the server does not answer or
    lacks a tool that is wanted.
    """
    try:
        offered = {tool.name: tool for tool in await session.tools()}
    except ServiceError as error:
        raise ToolError(str(error)) from None
    if missing := [name for name in wanted or () if name not in offered]:
        raise ToolError(f"the MCP server {session.name} has no tool {missing[0]!r}, it has {', '.join(offered) or 'none'}")
    chosen = [tool for name, tool in offered.items() if wanted is None or name in wanted]
    tools: list[McpTool] = []
    for tool in chosen:
        free = is_plain(tool.name) and tool.name not in reserved() and tool.name not in taken
        own = tool.name if re.search("[A-Za-z0-9]", tool.name) else plain(tool.name)
        wanted_name = tool.name if free else plain(f"{session.name}_{own}")
        name = numbered(wanted_name, lambda name: name in taken or name in (made.name for made in tools))
        tools.append(McpTool(session, name, tool))
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
