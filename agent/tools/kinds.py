"""The kind of a value in a few words of Python, as people and models read it: `str`, `list[int]`, `str | None`."""

import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Union

from pydantic import BaseModel

_PLAIN = {str: "str", int: "int", float: "float", bool: "bool", type(None): "None", dict: "dict", list: "list"}
_JSON = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
_DEPTH = 4


def of_annotation(annotation: Any) -> str:
    """The kind of a parameter from its type annotation, as JSON can represent it."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return of_annotation(inner[0])
    if origin is Literal:
        return _literal(inner)
    if origin in (Union, types.UnionType):
        return _either([of_annotation(each) for each in inner])
    if isinstance(annotation, type) and annotation in _PLAIN:
        return _PLAIN[annotation]
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return f"dict[str, {of_annotation(inner[1])}]"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "dict"
    if origin in (list, set, frozenset):
        return f"list[{of_annotation(inner[0])}]"
    return "list" if origin is tuple else "object"


def of_schema(schema: Any, depth: int = 0) -> str:
    """The kind of a value by its JSON schema; `object` where it says nothing plain."""
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
