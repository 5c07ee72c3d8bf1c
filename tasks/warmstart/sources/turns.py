"""The turns of a conversation, from a row of a file: the forms of chat servers and of ShareGPT."""

import json
import re
from collections.abc import Mapping
from contextlib import suppress
from itertools import pairwise
from typing import Any, NamedTuple

from nbrl.agent.messages import Role
from nbrl.agent.tokens.tokenizer import THINK, THOUGHT
from nbrl.infra.parse import json_value

HELD = ("messages", "conversations")  # columns of conversations
ROLES: dict[str, Role] = {
    "system": "system", "developer": "system", "user": "user", "human": "user", "tool": "user", "function": "user",
    "observation": "user", "ipython": "user", "assistant": "assistant", "gpt": "assistant", "model": "assistant",
    "function_call": "assistant",
}  # fmt: skip
THOUGHTS = ("reasoning_content", "reasoning", "thinking")
MARKS = ("weight", "train", "loss")  # whether a turn is learnt, with 0 or false for one that is not
CALLS = ("tool_calls", "function_call")
MEDIA = ("images", "image", "videos", "video", "audios", "audio")  # columns of what a row shows besides its text
# What says nothing of a turn's text.
BESIDES = ("name", "id", "tool_call_id", "model", "timestamp", "created", "index")

_THOUGHT = re.compile(rf"\s*{THINK}(.*?){THOUGHT}\s*", re.DOTALL)


class UnfitError(Exception):
    """The row is no conversation that any template takes; the message says why and what to do."""


class Turn(NamedTuple):
    """The text of a turn, with the assistant's thought before it; `learnt` unless marked otherwise, or with calls of tools."""

    role: Role
    text: str
    thought: str = ""
    learnt: bool = True


def turns_of(row: Mapping[str, Any]) -> list[Turn]:
    """Return the turns of a row. Raises UnfitError."""
    messages = _atif_messages(row) if is_atif(row) else next((row[name] for name in HELD if row.get(name)), None)
    if isinstance(messages, str):
        with suppress(ValueError, RecursionError):
            messages = json_value(messages)
    if not isinstance(messages, list):
        raise UnfitError('has no messages; write {"messages": [{"role": "user", "content": "..."}, ...]}')
    if shown := next((name for name in MEDIA if row.get(name)), None):
        raise UnfitError(f"has {shown!r}, which a conversation of text cannot show; leave it out")
    if mark := next((name for name in MARKS if row.get(name, 1) == 0), None):
        raise UnfitError(f"is not to be learnt, as its {mark!r} says; leave it out")
    turns = [_turn(message) for message in messages]
    beside = next((name for name in ("system", "system_prompt") if row.get(name)), None)  # as in ShareGPT
    if beside and turns:
        system = _turn({"role": "system", "content": row[beside]})
        if turns[0].role == "system" and turns[0] != system:
            raise UnfitError(f"has a system turn and another text in {beside!r}; leave one of the two")
        turns = [system, *turns[turns[0].role == "system" :]]
    roles = [turn.role for turn in turns]
    if "system" in roles[1:]:
        raise UnfitError("has a system turn that is not its first; put it first, or leave it out")
    if any(before != "user" for before, role in pairwise(["", *roles]) if role == "assistant"):
        raise UnfitError("has a turn of the assistant that answers no user; put a turn of the user before it")
    if not any(turn.role == "assistant" and turn.learnt for turn in turns):
        raise UnfitError("has no turn of the assistant to learn, so nothing is demonstrated")
    return turns


def is_atif(row: Mapping[str, Any]) -> bool:
    """Return whether a row is a trajectory of the Agent Trajectory Interchange Format."""
    return str(row.get("schema_version", "")).startswith("ATIF-v1") and isinstance(row.get("steps"), list)


def _atif_messages(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    try:
        return atif_messages(row)
    except (AttributeError, TypeError) as error:
        raise UnfitError("has steps that are not as ATIF has them; write them as the format says") from error


def atif_messages(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the steps of such a trajectory as messages of a chat server: results of tools after the turn that called them."""
    messages: list[dict[str, Any]] = []
    for step in row["steps"]:
        if not isinstance(step, dict):
            raise UnfitError("has a step that is no object; write it as the format says")
        role = "assistant" if step.get("source") == "agent" else str(step.get("source"))
        says = [step.get(name) for name in ("message", "tool_calls", "observation")]
        if step.get("is_copied_context") or not any(says):
            continue  # it was said before, or says nothing
        thought = {"reasoning_content": step["reasoning_content"]} if step.get("reasoning_content") else {}
        calls = [{"name": call.get("function_name"), "arguments": call.get("arguments")} for call in step.get("tool_calls") or []]
        called = {"tool_calls": calls} if calls else {}
        messages.append({"role": role, "content": step.get("message"), **(thought | called if role == "assistant" else {})})
        results = (step.get("observation") or {}).get("results") or []
        messages += [{"role": "tool", "content": result.get("content") or ""} for result in results]
    return messages


def _turn(message: Any) -> Turn:
    given = {name: value for name, value in message.items() if value is not None} if isinstance(message, dict) else {}
    named = str(given.pop("role", given.pop("from", "")))
    role = ROLES.get(named.lower())
    content = given.pop("content", given.pop("value", ""))
    said = _text(content)
    if role is None:
        raise UnfitError(f"has a message of the role {named[:40]!r}; the roles are {', '.join(ROLES)}")
    if said is None:
        raise UnfitError(f"has a message whose content is not text alone: {repr(content)[:80]}; leave the text")
    called = [given.pop(name) for name in CALLS if given.get(name)]
    thoughts = {_text(given.pop(name)) for name in THOUGHTS if name in given} - {""}
    if len(thoughts) > 1 or None in thoughts:
        raise UnfitError(f"has a turn with two thoughts, or one that is no text, in {', '.join(THOUGHTS)}; leave one text there")
    thought = str(next(iter(thoughts), ""))
    if thought and (repeated := _THOUGHT.match(said)):
        if repeated[1].strip() not in ("", thought.strip()):
            raise UnfitError("has a turn with two thoughts, one of them in its content; leave one")
        said = said[repeated.end() :]
    marks = {name: given.pop(name) for name in MARKS if name in given}
    unknown = sorted(name for name in given.keys() - {*BESIDES, *CALLS} if given[name] not in ([], {}, ""))
    if role != "assistant":
        return Turn(role, said)
    if unknown:
        raise UnfitError(f"has a turn of the assistant with {unknown[0]!r}, which may change what it says; take it out")
    if wrong := [name for name, value in marks.items() if value not in (0, 1)]:
        raise UnfitError(f"has a turn of the assistant whose {wrong[0]!r} is neither 0 nor 1; set one of the two")
    if called:  # of tools that the agent does not have: shown, not learnt
        return Turn(role, "\n".join([*([said] if said else []), *map(json.dumps, called)]), thought, learnt=False)
    if named in CALLS:
        return Turn(role, said, thought, learnt=False)
    if not said.strip():
        raise UnfitError("has an empty turn of the assistant; take it out")
    return Turn(role, said, thought, learnt=all(marks.values()))


def _text(content: Any) -> str | None:
    """Return a text, or that of parts that are all text; None for what is none, or cannot be stored."""
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, dict) and part.get("type", "text") == "text" else None for part in content]
        if not all(isinstance(part, str) for part in parts):
            return None
        content = "".join(map(str, parts))
    return content if isinstance(content, str) and content == content.encode("utf-8", "replace").decode() else None
