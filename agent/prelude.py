"""The source that makes a clean kernel a notebook for the agent: its notepad, its final answer and its tools."""

from collections.abc import Iterable
from pathlib import Path

from agent.tools.base import Tool

STATE_EXPRESSION = "_nbrl_state"


def prelude(tools: Iterable[Tool]) -> str:
    """Kernel source. Needs a builtin `host_call(name, arguments)` wherever there are tools."""
    source = [Path(__file__).with_name("inside.py").read_text(encoding="utf-8")]
    for tool in tools:
        names = ", ".join(tool.parameters)
        arguments = ", ".join(f"{name!r}: {name}" for name in tool.parameters)
        source.append(f"def {tool.name}({names}):\n    {tool.summary!r}\n    return host_call({tool.name!r}, {{{arguments}}})\n")
    return "\n\n".join(source)
