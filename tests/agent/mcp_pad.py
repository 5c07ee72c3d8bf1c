"""An MCP server that keeps a list for each session. Usage: python mcp_pad.py [PORT [stateless]], as mcp_lab.py."""

import os
import subprocess
import sys
import time

from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("pad", log_level="ERROR")
lists: dict[str, list[str]] = {}


@server.tool()
def write(text: str, context: Context) -> list[str]:
    """Adds a line to the list and gives all of it."""
    lines = lists.setdefault((context.headers or {}).get("mcp-session-id", ""), [])
    lines.append(text)
    return lines


@server.tool()
def whose() -> int:
    """Gives the number of the server's process."""
    return os.getpid()


@server.tool()
def leave_behind() -> str:
    """Starts a program that detaches itself."""
    subprocess.Popen(["setsid", "sleep", "1000"])
    return "started"


@server.tool()
def die() -> str:
    """Ends the server."""
    os._exit(3)


@server.tool()
def hang() -> str:
    """Answers nothing and lets no other call be answered."""
    time.sleep(1000)
    return "awake"


@server.tool()
def flood(size: int) -> str:
    """Says much."""
    return "x" * size


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]), stateless_http="stateless" in sys.argv)
    else:
        server.run("stdio")
