"""A small MCP server. Usage: python mcp_lab.py [PORT]: streamable HTTP on that port, else standard input and output."""

import asyncio
import os
import sys
from typing import Annotated

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import BlobResourceContents, EmbeddedResource, ResourceLink, TextResourceContents
from pydantic import Field

server = MCPServer("lab", log_level="ERROR")


@server.tool()
def add(a: int, b: Annotated[int, Field(description="the second number")] = 1) -> int:
    """Adds two numbers.

    And nothing else.
    """
    return a + b


@server.tool()
def search(query: str) -> str:
    """Finds nothing."""
    return f"nothing on {query}"


@server.tool(name="odd-name")
def odd(items: list[str] | None = None) -> dict[str, list[str]]:
    """Has a name that is no Python."""
    return {"items": items or []}


@server.tool()
def fail() -> str:
    """Fails."""
    raise ToolError(f"failed with {os.environ.get('LAB_TOKEN')}")


@server.tool()
def tell(code: Annotated[str, Field(pattern="^(a+)+$")] = "a") -> list[str]:
    """Tells what it should not."""
    return [f"the token is {os.environ.get('LAB_TOKEN')}"]


@server.tool()
def die() -> str:
    """Ends the server."""
    os._exit(3)


@server.tool()
async def sleep(seconds: float) -> str:
    """Takes its time."""
    await asyncio.sleep(seconds)
    return "awake"


@server.tool()
def flood(size: int) -> str:
    """Says much."""
    return "x" * size


@server.tool()
def environment() -> list[str]:
    """Names the variables it has."""
    return sorted(os.environ)


@server.tool(structured_output=False)
def attach() -> list[EmbeddedResource | ResourceLink]:
    """Gives files."""
    text = TextResourceContents(uri="notes://1", text="noted")
    packed = BlobResourceContents(uri="notes://2", blob="AAAA")
    link = ResourceLink(type="resource_link", name="three", uri="notes://3")
    return [EmbeddedResource(type="resource", resource=text), EmbeddedResource(type="resource", resource=packed), link]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run("stdio")
