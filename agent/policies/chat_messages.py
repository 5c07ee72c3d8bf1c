"""Converts a conversation to the format of the OpenAI chat API."""

import base64
import re
from itertools import groupby
from typing import Any

from nbrl.agent.grammar import Thinking
from nbrl.agent.messages import Message
from nbrl.agent.pictures import picture_kind
from nbrl.agent.tokens.tokenizer import THINK, THOUGHT

# What models of the known families take for the marks of a turn, where a server renders text and then tokenises all of it.
_MARK = re.compile(
    r"<(?=[|｜][^\s<>](?:[^<>\n]{0,58}[^\s<>])?>|[^\s<>]{1,60}[|｜]>|/?s>|(?:[bes]o[dps]|pad|unk|mask|cls|sep)>|(?:start|end|begin)_of_\w{1,40}>"
    r"|(?:extra_id|unused|reserved|SPECIAL)_?\w{1,30}>|seed:[\w:]{1,40}>|</?SYS>>|/?tool_(?:call|response)>)"
    r"|\[(?=/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_\w{1,20}|[gs]?MASK|CLS|SEP|PAD|THINK|ARGS|CALL_ID|IMG\w{0,10})\]|e~\[)|\](?=~[a-z]{1,20}\])"
)


def chat_messages(messages: list[Message], sees_images: bool, thinking: Thinking) -> list[dict[str, Any]]:
    """Neighbours of one role become one message, for many templates want the roles to alternate.

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
