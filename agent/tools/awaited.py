"""What an agent reads of `llm` and `agent`, the calls that it awaits."""

from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nbrl.agent.errors import ToolError
from nbrl.agent.tools.base import Parameter, Tool

Answers = Callable[[dict[str, Any]], Coroutine[Any, Any, Any]]


async def _described_only(arguments: dict[str, Any]) -> Any:
    raise ToolError("there is no agent here whose child it could be")


@dataclass(frozen=True)
class AwaitedTool:
    """A tool whose calls can run at the same time: see nbrl.agent.tools.base.Tool. `run` answers them."""

    name: str
    summary: str
    parameters: tuple[Parameter, ...]
    details: str = ""
    returns: str = "str"
    run: Answers = _described_only
    awaited: bool = True

    async def call(self, arguments: dict[str, Any]) -> Any:
        return await self.run(arguments)

    @property
    def schema(self) -> dict[str, Any]:
        needed = [each.key for each in self.parameters if each.required]
        return {"type": "object", "properties": {each.key: {} for each in self.parameters}, "required": needed}


LLM = AwaitedTool(
    "llm",
    "ask a model that sees nothing but the prompt; several at once by asyncio.gather",
    (Parameter("prompt", "prompt", "str"), Parameter("max_tokens", "max_tokens", "int", required=False, default=256)),
)
AGENT = AwaitedTool(
    "agent",
    "let another agent do a task in a notebook of its own; it sees the context, and copies of the files",
    (
        Parameter("task", "task", "str"),
        Parameter("context", "context", "str", required=False, default=""),
        Parameter("files", "files", "list[str]", required=False, default=()),
        Parameter("collect", "collect", "list[str]", required=False, default=()),
    ),
)
AWAITED: tuple[Tool, ...] = (LLM, AGENT)


def with_awaited(tools: Iterable[Tool], more: Sequence[Tool] = AWAITED) -> list[Tool]:
    """Return tools and those that cells await. Raises ToolError where one of them has the name of another."""
    tools = list(tools)
    names = {tool.name for tool in more}
    if taken := [tool.name for tool in tools if tool.name in names]:
        raise ToolError(f"the tool {taken[0]!r} has the name of a call of agent.children; rename it, or leave agent.children out")
    return [*tools, *more]


def served(complete: Answers, act: Answers) -> list[Tool]:
    """Return the tools with what answers their calls."""
    return [replace(LLM, run=complete), replace(AGENT, run=act)]
