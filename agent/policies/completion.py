"""Reads what a server of the OpenAI chat API answers: a completion, or an error, whatever its status is."""

import json
import re
from typing import Any, NamedTuple

from nbrl.agent.grammar import Thinking
from nbrl.agent.messages import storable
from nbrl.agent.tokens.tokenizer import THINK, THOUGHT

MOST_TOKENS = 1 << 20  # a server that says it sampled more is not believed
UPSTREAM = 502  # what an error without a status of its own counts as
# Reasons of the server, not of the model, for the end of a text.
BROKEN = ("abort", "error", "network_error", "insufficient_system_resource")


class Completion(NamedTuple):
    """The text of a completion, how many tokens the server says it has, the model's name if it is there, and why it ended."""

    text: str
    tokens: int | None
    model: str | None
    finish: object


def read(answer: bytes, thinking: Thinking) -> Completion:
    """Raises ValueError for what is no completion."""
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
    """What an answer stands for which came with 200, but with an error, without choices or broken off: an HTTP status, and what
    it came with in words; else None."""
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
    """The text of a message or, where it comes in parts, of its parts of a kind, whose own text may be parts again."""
    if isinstance(said, list):
        parts = [part for part in said if isinstance(part, dict) and part.get("type") == kind]
        return "".join(_joined(part.get(kind), "text") for part in parts)
    return said if isinstance(said, str) and kind == "text" else ""
