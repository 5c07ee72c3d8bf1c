"""A conversation as text and images, for people and chat servers. Token ids are another view of the same conversation.

Helpers that shorten texts of models, cells and servers and make them storable.

What the policy reads of a cell.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from nbrl.agent.kernel import CellResult
from nbrl.agent.trajectory import Output

Role = Literal["system", "user", "assistant"]


Span = tuple[int, int]


"""Where a part of a text begins and ends."""


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
    """What a policy continues. `runs` of token ids and `messages` are the same conversation; the last message is the tail.

    The runs are those of the tree, so a prompt that waits holds no ids of its own; `token_ids` makes a new list of them.

    Without a tokenizer (a hosted chat model) the ids are unknown: each is `UNKNOWN` of nbrl.agent.tokens and only their number,
    an estimate, means something.
    """

    runs: Sequence[Sequence[int]]
    messages: list[Message]

    @property
    def token_ids(self) -> list[int]:
        return list(chain.from_iterable(self.runs))


def storable(text: str) -> str:
    """`text` with a question mark for each half of a surrogate pair, which JSON can hold and UTF-8 cannot."""
    return text.encode("utf-8", "replace").decode()


def cut_middle(text: str, limit: int) -> str:
    """Keep head and tail, and replace the middle by a mark."""
    if len(text) <= limit:
        return text
    head = limit // 2
    return f"{text[:head]}\n[{len(text) - limit} characters cut]\n{text[len(text) - (limit - head) :]}"


def cut_end(text: str, chars: int) -> str:
    """Return the first `chars` characters, with a mark if there were more."""
    return text if len(text) <= chars else f"{text[:chars]}\n[cut here: {chars} characters]"


def with_files(question: str, names: Iterable[str]) -> str:
    """Return the question with the names of the files in the working folder below it, unless it ends with them."""
    listed = "\n".join(f"- {name}" for name in names)
    named = f"\n\nFiles in the working folder:\n{listed}" if listed else ""
    return question if question.endswith(named) else question + named


def observe(cell: CellResult) -> str:
    """Return what the policy reads of a cell."""
    text = "".join(_seen(output) for output in cell.outputs).rstrip("\n")
    text = storable(text)
    notice = {"timeout": "The cell took too long and was stopped.", "dead": "The kernel died."}.get(cell.status, "")
    return "\n".join(part for part in (text, notice) if part)


def _seen(output: Output) -> str:
    """Return an output's text with a final line end. An image is shown as its size; policies that can see also get the image."""
    text = output.text if output.text.endswith("\n") else output.text + "\n"
    return f"{text}[image {output.size[0]}x{output.size[1]}]\n" if output.image else text
