"""Rules for names of tools and their parameters, which become Python source in a kernel."""

import ast
import builtins
import keyword
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union

from pydantic import BaseModel

from nbrl.agent.errors import ToolError

_IN_KERNEL = Path(__file__).parents[1] / "kernels" / "in_kernel.py"
_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_KERNEL = {"host_call", "get_ipython", "display", "exit", "quit", "In", "Out"}
_PLAIN_KINDS = {str: "str", int: "int", float: "float", bool: "bool", type(None): "None", dict: "dict", list: "list"}
_JSON = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
_DEPTH = 4


@lru_cache(maxsize=1)
def reserved() -> frozenset[str]:
    """Return names a tool must not take: Python's own, the notebook's and those of nbrl.agent.kernels.in_kernel."""
    taken = set(dir(builtins)) | _KERNEL
    for node in ast.parse(_IN_KERNEL.read_text(encoding="utf-8")).body:
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                taken.add(name)
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                taken.add(name)
    return frozenset(taken)


def is_plain(name: str) -> bool:
    """Return whether it is an ASCII identifier that means nothing to Python and is not private."""
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
    """Return a valid name that resembles `text`."""
    name = re.sub(r"[^A-Za-z0-9]+", "_", text).strip("_")[:60] or "unnamed"
    name = name if name[0].isalpha() else f"n_{name}"
    return f"{name}_" if keyword.iskeyword(name) or name == "host_call" else name


def plain_names(keys: Iterable[str]) -> dict[str, str]:
    """Return a valid, unique name for each key."""
    names: dict[str, str] = {}
    for key in keys:
        names[key] = numbered(plain(key), lambda name: name in names.values())
    return names


def numbered(name: str, taken: Callable[[str], bool]) -> str:
    """Return `name`, with a number if it is taken."""
    free, number = name, 1
    while taken(free):
        number += 1
        free = f"{name[:56]}_{number}"
    return free


def of_annotation(annotation: Any) -> str:
    """Return the kind of a parameter from its type annotation, as JSON can represent it."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return of_annotation(inner[0])
    if origin is Literal:
        return _literal(inner)
    if origin in (Union, types.UnionType):
        return _either([of_annotation(each) for each in inner])
    if isinstance(annotation, type) and annotation in _PLAIN_KINDS:
        return _PLAIN_KINDS[annotation]
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"dict[str, {of_annotation(inner[1])}]"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "dict"
    if origin in (list, set, frozenset):
        return f"list[{of_annotation(inner[0])}]"
    return "list" if origin is tuple else "object"


def of_schema(schema: Any, depth: int = 0) -> str:
    """Return the kind of a value by its JSON schema; `object` where it names no plain one."""
    if not isinstance(schema, dict) or depth > _DEPTH:
        return "object"
    if isinstance(options := schema.get("enum"), list) and 0 < len(options) <= 20 and all(map(_is_word, options)):
        return _literal(tuple(options))
    for key in ("anyOf", "oneOf"):
        if isinstance(options := schema.get(key), list) and options:
            return _either([of_schema(each, depth + 1) for each in options])
    match schema.get("type"):
        case list() as names if names:
            return _either([of_schema({**schema, "type": name}, depth + 1) for name in names])
        case "array":
            inner = of_schema(schema.get("items"), depth + 1)
            return "list" if inner == "object" else f"list[{inner}]"
        case "object":
            return "dict"
        case str() as name:
            return _JSON.get(name, "object")
    return "object"


def _is_word(value: object) -> bool:
    return value is None or isinstance(value, bool | int) or (isinstance(value, str) and len(value) <= 60 and value.isprintable())


def _literal(values: tuple[Any, ...]) -> str:
    return f"Literal[{', '.join(map(repr, values))}]"


def _either(kinds: list[str]) -> str:
    return "object" if "object" in kinds else " | ".join(dict.fromkeys(kinds))
