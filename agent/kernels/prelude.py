"""The source that gives a clean kernel the agent's notepad, final answer and tools."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nbrl.agent.context.notepad import ANSWER_CHARS, MARKS, MAX_CHARS, MAX_ITEMS, REPORT_CHARS
from nbrl.agent.tools.base import Parameter, Tool, awaited
from nbrl.agent.tools.exchange import BEGUN, CHANNEL, REQUEST_BYTES
from nbrl.agent.tools.names import check_parameter_name, check_tool_name

STATE_EXPRESSION = "_nbrl_state"
CHILDREN = {"CHANNEL": CHANNEL, "REQUEST_BYTES": REQUEST_BYTES, "BEGUN": BEGUN}
NAMES = ("notepad", "context", "history", "submit_final_answer", STATE_EXPRESSION)

CAPS = {
    "MAX_ITEMS": MAX_ITEMS,
    "MAX_CHARS": MAX_CHARS,
    "REPORT_CHARS": REPORT_CHARS,
    "ANSWER_CHARS": ANSWER_CHARS,
    "MARKS": MARKS,
}
"""Limits of the notepad, which host and kernel both apply."""

# Kinds made of these words alone mean the same to the kernel's Python; any other is written as a string.
_EVALUATES = re.compile(r"(?:str|int|float|bool|None|list|dict|object|[\[\], |])+")


def prelude(tools: Iterable[Tool]) -> str:
    """Return kernel source. Needs a builtin `host_call(name, arguments)` wherever there are tools.

    The notebook's own code gets a namespace of its own, where a cell's variable called `str` does not reach.
    """
    return _built_in(_source("in_kernel.py"), "<nbrl>", NAMES, CAPS) + definitions(tools)


def _source(file: str) -> str:
    return Path(__file__).with_name(file).read_text(encoding="utf-8")


def state_expression(message: str) -> str:
    """Return the expression to evaluate after a cell: the state, once it has the `message` of `Context.kernel_message`."""
    return f"{STATE_EXPRESSION}.receive({message!r})" if message else STATE_EXPRESSION


def functions(tools: Iterable[Tool]) -> str:
    """Return kernel source of the tools alone: a function each, with signature, defaults and docstring.

    Names are checked and all else is written by `repr`, so nothing a tool says of itself can run. Raises ToolError for a name.
    """
    return "\n\n".join(map(_function, tools))


def definitions(tools: Iterable[Tool]) -> str:
    """Return kernel source that makes the functions of the tools builtins. Raises ToolError as `functions` does."""
    tools = list(tools)
    plain, names = [tool for tool in tools if not awaited(tool)], tuple(tool.name for tool in tools if awaited(tool))
    children = _built_in(_source("in_kernel_children.py"), "<children>", names, CHILDREN) if names else ""
    return _built_in(functions(plain), "<tools>", tuple(tool.name for tool in plain), {}) + children


def _built_in(source: str, file: str, names: tuple[str, ...], given: dict[str, Any]) -> str:
    """Return code that runs `source` in a namespace of its own and makes `names` of it builtins.

    A cell that takes such a name for a variable has it back when it deletes that, or all it defined.
    """
    return f"""\
_nbrl = {given | {"__name__": "nbrl"}!r}
exec(compile({source!r}, {file!r}, 'exec'), _nbrl)
(__builtins__ if isinstance(__builtins__, dict) else vars(__builtins__)).update({{name: _nbrl[name] for name in {names!r}}})
del _nbrl
"""


def _function(tool: Tool) -> str:
    check_tool_name(tool.name)
    for parameter in tool.parameters:
        check_parameter_name(tool.name, parameter.name)
    named = ", ".join(map(_parameter, tool.parameters))
    returns = f" -> {_kind(tool.returns)}" if tool.returns else ""
    arguments = ", ".join(f"{parameter.key!r}: {parameter.name}" for parameter in tool.parameters)
    given = f"{{{arguments}}}"
    if any(not parameter.required and parameter.default is ... for parameter in tool.parameters):
        given = f"{{key: value for key, value in {given}.items() if value is not ...}}"
    return f"def {tool.name}({named}){returns}:\n    {documentation(tool)!r}\n    return host_call({tool.name!r}, {given})\n"


def documentation(tool: Tool) -> str:
    """Return what `help(tool)` shows: summary, details and the arguments."""
    parts = [tool.summary, tool.details]
    helps = [f"    {parameter.name}: {parameter.help}" for parameter in tool.parameters if parameter.help]
    if helps:
        parts.append("\n".join(["Args:", *helps]))
    return "\n\n".join(part for part in parts if part)


def _kind(kind: str) -> str:
    return kind if _EVALUATES.fullmatch(kind) else repr(kind)


def _parameter(parameter: Parameter) -> str:
    default = "" if parameter.required else f" = {'...' if parameter.default is ... else repr(parameter.default)}"
    return f"{parameter.name}: {_kind(parameter.kind)}{default}"
