"""Rules for names of tools and their parameters, which become Python source in a kernel."""

import ast
import builtins
import keyword
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path

from nbrl.agent.errors import ToolError

_IN_KERNEL = Path(__file__).parents[1] / "kernels" / "in_kernel.py"
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_KERNEL = {"host_call", "get_ipython", "display", "exit", "quit", "In", "Out"}


@lru_cache(maxsize=1)
def reserved() -> frozenset[str]:
    """Names a tool must not take: Python's own, the notebook's and those of nbrl.agent.kernels.in_kernel."""
    taken = set(dir(builtins)) | _KERNEL
    for node in ast.parse(_IN_KERNEL.read_text(encoding="utf-8")).body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                taken.add(name)
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                taken.add(name)
    return frozenset(taken)


def is_plain(name: str) -> bool:
    """Whether it is an ASCII identifier that says nothing to Python and is not private."""
    return _PLAIN.fullmatch(name) is not None and not keyword.iskeyword(name)


def check_tool_name(name: str) -> None:
    """Raises ToolError unless `name` can be a function of a kernel."""
    if not is_plain(name) or name in reserved():
        raise ToolError(
            f"{name[:80]!r} cannot be a tool's name: take a plain Python name that Python and the notebook do not use"
        )


def check_parameter_name(tool: str, name: str) -> None:
    """Raises ToolError unless `name` can be a parameter of `tool` in a kernel."""
    if not is_plain(name) or name == "host_call":
        raise ToolError(f"{tool}: {name[:80]!r} cannot be a parameter's name; take a plain Python name")


def plain(text: str) -> str:
    """A valid name that resembles `text`."""
    name = re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_")[:60] or "unnamed"
    name = name if name[0].isalpha() else f"n_{name}"
    return f"{name}_" if keyword.iskeyword(name) or name == "host_call" else name


def plain_names(keys: Iterable[str]) -> dict[str, str]:
    """A valid, unique name for each key."""
    names: dict[str, str] = {}
    for key in keys:
        names[key] = numbered(plain(key), lambda name: name in names.values())
    return names


def numbered(name: str, taken: Callable[[str], bool]) -> str:
    """`name`, with a number if it is taken."""
    free, number = name, 1
    while taken(free):
        number += 1
        free = f"{name[:56]}_{number}"
    return free
