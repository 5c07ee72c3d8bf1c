"""Reads what a server of the OpenAI chat API answers: a completion, or an error, whatever its status is."""

import base64
import json
import re
from itertools import groupby
from typing import Any, NamedTuple

from nbrl.agent.grammar import Thinking
from nbrl.agent.messages import Message
from nbrl.agent.pictures import picture_kind
from nbrl.agent.text import storable
from nbrl.agent.tokens.tokenizer import THINK, THOUGHT

MOST_TOKENS = 1 << 20  # a server that says it sampled more is not believed
UPSTREAM = 502  # what an error without a status of its own counts as
# Reasons of the server, not of the model, for the end of a text.
BROKEN = ("abort", "error", "network_error", "insufficient_system_resource")


# What models of the known families take for the marks of a turn, where a server renders text and then tokenises all of it.
_MARK = re.compile(
    r"<(?=[|｜][^\s<>](?:[^<>\n]{0,58}[^\s<>])?>|[^\s<>]{1,60}[|｜]>|/?s>|(?:[bes]o[dps]|pad|unk|mask|cls|sep)>|(?:start|end|begin)_of_\w{1,40}>"
    r"|(?:extra_id|unused|reserved|SPECIAL)_?\w{1,30}>|seed:[\w:]{1,40}>|</?SYS>>|/?tool_(?:call|response)>)"
    r"|\[(?=/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_\w{1,20}|[gs]?MASK|CLS|SEP|PAD|THINK|ARGS|CALL_ID|IMG\w{0,10})\]|e~\[)|\](?=~[a-z]{1,20}\])"
)


class Completion(NamedTuple):
    """The text of a completion, how many tokens the server says it has, the model's name if it is there, and why it ended."""

    text: str
    tokens: int | None
    model: str | None
    finish: object


def read(answer: bytes, thinking: Thinking) -> Completion:
    """Read a completion. Raises ValueError for anything else."""
    try:
        reply = json.loads(answer)
        choice = reply["choices"][0]
        finish, message = choice.get("finish_reason"), choice["message"]
        text = storable(_text(message, thinking))
        count = (reply.get("usage") or {}).get("completion_tokens")
        model = storable(str(reply["model"])) if reply.get("model") else None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError("no chat completion") from error
    tokens = count if isinstance(count, int) and 0 < count <= MOST_TOKENS else None
    return Completion(text, tokens, model, finish)


def fault(answer: bytes) -> tuple[int, str] | None:
    """Return status and words of a failure that came with 200: an error, no choices, or an answer broken off; else None."""
    try:
        reply = json.loads(answer)
    except (ValueError, RecursionError):
        return None
    if not isinstance(reply, dict):
        return None
    match reply.get("choices"):
        case [{"error": error}, *_] if error:
            pass
        case [{"finish_reason": str(finish)}, *_] if finish in BROKEN:
            return UPSTREAM, f"a text that ended with {finish!r}"
        case None | [] if reply.get("error"):
            error = reply["error"]
        case [None, *_] | []:
            return UPSTREAM, "no completion"
        case None if "choices" in reply:
            return UPSTREAM, "no completion"
        case _:
            return None
    code = str(error.get("code")) if isinstance(error, dict) else ""
    return (int(code), f"the error {code}") if re.fullmatch("[45][0-9]{2}", code) else (UPSTREAM, "an error")


def _text(message: dict[str, Any], thinking: Thinking) -> str:
    content = _joined(message.get("content"), "text")
    if thinking != "native":
        return content
    kept = message.get("reasoning_content") or message.get("reasoning") or _joined(message.get("content"), "thinking")
    thought = _joined(kept, "text").replace(THINK, "").replace(THOUGHT, "")
    if content.lstrip().startswith(THINK) or (not thought and THOUGHT in content):
        return content
    return f"{THINK}{thought}{THOUGHT}\n{content}"


def _joined(said: Any, kind: str) -> str:
    """Return the text of a message or, where it comes in parts, of its parts of a kind, whose own text may be parts again."""
    if isinstance(said, list):
        parts = [part for part in said if isinstance(part, dict) and part.get("type") == kind]
        return "".join(_joined(part.get(kind), "text") for part in parts)
    return said if isinstance(said, str) and kind == "text" else ""


def chat_messages(messages: list[Message], sees_images: bool, thinking: Thinking) -> list[dict[str, Any]]:
    """Return the messages with neighbours of one role as one, since many templates want the roles to alternate.

    Marks of a turn in what was not sampled are set apart by a space, so that a page that holds `<|im_end|>` ends no turn.
    Pictures become parts of their own after the text, whose marks such as "[image 640x480]" are all that other models see, and
    all that is said of what is no picture.
    Native thinking of earlier turns is left out, as reasoning models expect.
    """
    return [_chat_message(role, list(group), sees_images, thinking) for role, group in groupby(messages, lambda m: m.role)]


def _chat_message(role: str, group: list[Message], sees_images: bool, thinking: Thinking) -> dict[str, Any]:
    said = role == "assistant" and thinking == "native"
    text = "\n".join(_without_thinking(message.text) if said else message.text for message in group)
    if role != "assistant":
        text = _MARK.sub(lambda mark: f"{mark[0]} ", text)
    images = [image for message in group for image in message.images if picture_kind(image)] if sees_images else []
    if not images:
        return {"role": role, "content": text}
    return {"role": role, "content": [{"type": "text", "text": text}, *map(_part, images)]}


def _without_thinking(text: str) -> str:
    before, found, after = text.partition(THOUGHT)
    return after.lstrip() if found and before.lstrip().startswith(THINK) else text


def _part(image: bytes) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:{picture_kind(image)};base64,{base64.b64encode(image).decode()}"}}
