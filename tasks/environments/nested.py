"""Columns of structures and of lists of them: what lies in them by its path, and messages as the question that they ask."""

import ast
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa

from nbrl.infra.parse import json_value


def paths(table: pa.Table) -> list[str]:
    """Return the columns and, with dots, what lies in them: answers.text is that of the structures in answers."""
    return [each for field in table.schema for each in below(field.name, field.type)]


def below(name: str, kind: pa.DataType) -> list[str]:
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return [name, *below(name, kind.value_type)[1:]]
    members = [kind.field(place) for place in range(kind.num_fields)] if pa.types.is_struct(kind) else []
    return [name, *(each for member in members for each in below(f"{name}.{member.name}", member.type))]


def found(table: pa.Table, name: str) -> pa.ChunkedArray:
    """Return a column, or what lies in one."""
    if name in table.column_names:
        return table[name]
    root = next(each for each in table.column_names if name.startswith(f"{each}."))
    keys, kind = name.removeprefix(f"{root}.").split("."), table.schema.field(root).type
    return pa.chunked_array([pa.array([member(value, keys) for value in table[root].to_pylist()], _kind(kind, keys))])


def _kind(kind: pa.DataType, keys: Sequence[str]) -> pa.DataType:
    """Return the type of what lies below the keys in values of a type."""
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_kind(kind.value_type, keys))
    known = keys and pa.types.is_struct(kind) and kind.get_field_index(keys[0]) >= 0
    return _kind(kind.field(keys[0]).type, keys[1:]) if known else kind


def member(value: Any, keys: Sequence[str]) -> Any:
    """Return what lies below the keys in nested objects; of a list, that of each entry."""
    if isinstance(value, list):
        return [member(each, keys) for each in value]
    if not keys or not isinstance(value, dict):
        return None if keys else value
    return member(value.get(keys[0]), keys[1:])


def list_in(text: str) -> list[Any] | None:
    """Return the list that a text holds, as JSON or as Python writes it; None if it holds none."""
    if not text.lstrip().startswith("["):
        return None
    for read in (json_value, ast.literal_eval):
        with suppress(ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            value = read(text.strip())
            return value if isinstance(value, list) else None
    return None


def is_message(keys: set[str]) -> bool:
    """Return whether they are those of a message of a chat server, or of ShareGPT."""
    return {"role", "content"} <= keys or {"from", "value"} <= keys


def messages_in(text: str | None) -> list[dict[str, Any]] | None:
    """Return the messages that a text holds; None if it holds none."""
    entries = list_in(text or "") or []
    are_messages = entries and all(isinstance(each, dict) and is_message({*each}) for each in entries)
    return entries if are_messages else None


def asked(messages: Sequence[Mapping[str, Any]] | None) -> str | None:
    """Return the user's turn, after a turn of the system if there is one. Raises ValueError with what else there is."""
    if not messages:
        return None
    turns = [(str(each.get("role") or each.get("from")).lower(), _said(each)) for each in messages]
    roles = ["user" if role == "human" else role for role, _ in turns]
    if roles not in (["user"], ["system", "user"], ["developer", "user"]):
        raise ValueError(f"a conversation of {', '.join(roles)}, where a user asks once")
    return "\n\n".join(text for _, text in turns)


def _said(message: Mapping[str, Any]) -> str:
    """Return the text of a message, which may be in parts. Raises ValueError."""
    content = message.get("content") or message.get("value")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    texts = [part.get("text") for part in parts if isinstance(part, dict) and part.get("type", "text") == "text"]
    words = [each for each in texts if isinstance(each, str)]
    if len(words) < len(parts):
        raise ValueError("a message whose content is no text")
    return "".join(words)
