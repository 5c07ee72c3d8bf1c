"""A conversation as text and images, for people and chat servers. Token ids are another view of the same conversation."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

Role = Literal["system", "user", "assistant"]
Span = tuple[int, int]  # where a part of a text begins and ends


@dataclass(frozen=True)
class SystemPrompt:
    """A system prompt as text; `tags` is where the recipe's own words, not those of a tool, hold a tag of the action grammar."""

    text: str
    tags: tuple[Span, ...] = ()


@dataclass(frozen=True)
class Message:
    """One turn: `body`, inside `tag` if there is one. `images` are PNG files, or pictures that a question came with, shown after
    the text to policies that can see.

    Body and tag are kept apart because the body of an observation is also its step's: a long text is held once.
    """

    role: Role
    body: str
    images: tuple[bytes, ...] = ()
    tag: str = ""

    @property
    def text(self) -> str:
        return f"<{self.tag}>{self.body}</{self.tag}>" if self.tag else self.body


@dataclass(frozen=True)
class Prompt:
    """The prompt of a policy. `runs` of token ids and `messages` are the same conversation; the last message is the tail.

    The runs are those of the tree, so a prompt that waits holds no ids of its own; `token_ids` makes a new list of them.

    Without a tokenizer (a hosted chat model) the ids are unknown: each is `UNKNOWN` of nbrl.agent.tokens and only their number,
    an estimate, means something. Besides the model's own tokens the texts of `stop` end what is sampled, in policies that know
    ids.
    """

    runs: Sequence[Sequence[int]]
    messages: list[Message]
    stop: tuple[str, ...] = ()

    @property
    def token_ids(self) -> list[int]:
        return list(chain.from_iterable(self.runs))
