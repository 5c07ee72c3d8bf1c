"""Conversations of other programs to token ids, by the model's own chat template, as a server of the model renders them.

Where the agent of this package appends turns, other programs send a whole conversation with each request, with tools and turns of
any role. It is rendered as a whole. What messages hold can become no control token: it is shielded before it is rendered.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from nbrl.agent.errors import TokenizerError
from nbrl.agent.settings import AgentSettings
from nbrl.agent.tokens.chat_template import PROBE, Template
from nbrl.agent.tokens.tokenizer import THINK, THOUGHT, ChatTokenizer

OPEN, NUMBERS, CLOSE = "\ue000", 0xE100, "\ue001"
"""Around a character, from NUMBERS on, that replaces a control token's text in a message; of the private use area."""
_ITSELF = "\ue002"  # for OPEN

Chat = Sequence[Mapping[str, Any]]


class Verbatim(str):
    """A text that the model sampled, whose control tokens are such."""


class Conversations:
    """Renders and tokenises conversations for one model."""

    def __init__(self, tokenizer: ChatTokenizer, template: Template) -> None:
        self.tokenizer, self._template = tokenizer, template
        controls = sorted(tokenizer.controls, key=len, reverse=True)
        self._controls = controls[: 0xF8FF - NUMBERS]
        self._written = {text: f"{OPEN}{chr(NUMBERS + number)}{CLOSE}" for number, text in enumerate(self._controls)}
        self._written[OPEN] = f"{OPEN}{_ITSELF}{CLOSE}"
        self._read = {shield: text for text, shield in self._written.items()}
        self._texts = re.compile("|".join(map(re.escape, [OPEN, *controls])))
        self._shields = re.compile(f"{OPEN}.{CLOSE}")
        self.end = next(text for text, number in tokenizer.controls.items() if number == tokenizer.end_id)
        self._glue = re.compile("|".join(map(re.escape, controls)) or r"(?!)")

    @classmethod
    def load(cls, tokenizer: ChatTokenizer, settings: AgentSettings) -> "Conversations":
        """Load the chat template of the tokenizer's folder. Raises TokenizerError if it does not work for conversations."""
        if tokenizer.folder is None:
            raise TokenizerError("the tokenizer has no chat template beside it; load it from a folder")
        made = cls(tokenizer, Template.load(tokenizer.folder, settings.template_arguments))
        made.prove()
        return made

    def prove(self) -> None:
        """Raises TokenizerError unless a rendered probe has the ids that the tokenizer gives its whole text."""
        probe = [{"role": role, "content": text.strip()} for role, text in PROBE if role != "system"]
        chat = [each for place, each in enumerate(probe) if not place or each["role"] != probe[place - 1]["role"]]
        text = self.render(chat)
        if self.encode(text) != self.tokenizer.whole(text):
            raise TokenizerError(f"the turns of {self._template.name} cannot be tokenised one by one; use another model")

    def render(self, messages: Chat, tools: Sequence[Any] | None = None) -> str:
        """Return the text of a prompt, shielded. Raises TokenizerError if the template refuses the conversation."""
        shielded = [self._shielded(message, message.get("role") == "assistant") for message in messages]
        return self._template.render_chat(shielded, self._shielded(tools, False) if tools else None, opening=True)

    def encode(self, text: str) -> list[int]:
        """Return the ids of rendered text: control tokens are those of the template, never of a message."""
        ids, start = list[int](), 0
        for match in self._glue.finditer(text):
            ids += self._spelt(text[start : match.start()])
            ids.append(self.tokenizer.controls[match[0]])
            start = match.end()
        return ids + self._spelt(text[start:])

    def forges(self, text: str, ids: Sequence[int]) -> bool:
        """Return whether sampled ids spell a control token in plain ids: their text reads as one, and they are none."""
        known = set(self.tokenizer.controls.values())
        return [self.tokenizer.controls[found] for found in self._glue.findall(text)] != [each for each in ids if each in known]

    def behind(self, text: str, said: str) -> str | None:
        """Return what is left of a rendered text behind `said`, as it was sampled; None where it does not begin with it.

        Either may have control tokens as such; in a message that was sent back they are shielded.
        """
        place, left = 0, said
        while left:
            if match := self._shields.match(text, place):
                piece, place = self._read.get(match[0], match[0]), match.end()
            else:
                end = text.find(OPEN, place + 1)
                piece = text[place : len(text) if end < 0 else end][: len(left)]
                place += len(piece)
            if not piece or not left.startswith(piece):
                return None
            left = left[len(piece) :]
        return text[place:]

    def _spelt(self, text: str) -> list[int]:
        return self.tokenizer.spelt(self._shields.sub(lambda match: self._read.get(match[0], match[0]), text)) if text else []

    def _shielded(self, value: Any, assistant: bool) -> Any:
        """Return a value of a message with its texts shielded. An assistant's may say that it thinks, as the model does."""
        match value:
            case Verbatim():
                return value
            case str():
                return self._texts.sub(lambda match: self._shield(match[0], assistant), value)
            case Mapping():
                return {self._shielded(name, False): self._shielded(each, assistant) for name, each in value.items()}
            case list() | tuple():
                return [self._shielded(each, assistant) for each in value]
        return value

    def _shield(self, text: str, assistant: bool) -> str:
        return text if assistant and text in (THINK, THOUGHT) else self._written.get(text, "")
