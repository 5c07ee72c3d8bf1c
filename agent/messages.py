"""A conversation as text and images: what people read and what chat servers take. Token ids are another view of the same."""

from dataclasses import dataclass
from typing import Literal

Role = Literal["system", "user", "assistant"]


@dataclass(frozen=True)
class Message:
    """One turn. `images` are PNG files, shown after the text to policies that can see."""

    role: Role
    text: str
    images: tuple[bytes, ...] = ()


@dataclass(frozen=True)
class Prompt:
    """What a policy continues. `token_ids` and `messages` are the same conversation; the last message is the tail.

    Without a tokenizer (a hosted chat model) the ids are unknown: each is `agent.tokens.UNKNOWN` and only their number, an
    estimate, means something.
    """

    token_ids: list[int]
    messages: list[Message]
