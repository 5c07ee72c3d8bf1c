"""Messages to token ids and back, as the model's own chat template has it.

Every piece of glue is tokenised once. A message's text is encoded together with the plain glue it touches and without the model's
control tokens, so that the ids are those of the whole rendering, and a page that contains `<|im_end|>` or `<think>` reads as such
and cannot end a turn. Only where the recipe's own words ask the model to write a tag, as `<think>`, the tag is the model's own
token, for that is what the model will write.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Protocol

from tokenizers import Tokenizer

from nbrl.agent.errors import TokenizerError
from nbrl.agent.messages import Role, Span
from nbrl.agent.settings import AgentSettings
from nbrl.agent.tokens.alternation import ENDS, read_glue, taken
from nbrl.agent.tokens.chat_template import CHATML, PROBE, SUPPORTED, Frame, Glue, Template, read_json, special_tokens, token_text
from nbrl.agent.tokens.rendering import guarded, rendering

UNKNOWN = -1
"""The id of tokens of a model without a local tokenizer; such trajectories can be scored and shown, not trained on."""

LONG_CHARS = 16_000
START, END = "<|im_start|>", "<|im_end|>"
THINK, THOUGHT = "<think>", "</think>"


class Renderer(Protocol):
    """The interface between context and tokenizer."""

    def __hash__(self) -> int:
        """Return the identity: what was rendered once may be kept."""

    def message(self, role: Role, text: str, after: Role = "assistant", tags: Sequence[Span] = ()) -> list[int]:
        """Return a turn of text that was not sampled, or a part of a turn where the template wants one of each role `after`
        another.

        The `tags` in it may be tokens of the model's own.
        """

    def pictures(self, images: Sequence[bytes]) -> list[int]:
        """Return what the PNG files of a turn add to it; nothing where the policy gets them in words alone."""

    def generation_prompt(self) -> list[int]:
        """Return the tokens before a sampled action."""

    def history(self, sampled: list[int]) -> list[int]:
        """Return a sampled action as an earlier turn: the same ids, closed exactly once."""

    def encode_action(self, text: str) -> list[int]:
        """Return an action that was written, not sampled, closed like a sampled one."""

    def decode(self, ids: list[int]) -> str:
        """Return the text of a sampled action, without its closing marker."""


@dataclass(frozen=True)
class _Turn:
    """A frame in ids; `lead` and `trail` are the plain text between its control tokens and the message."""

    head: list[int]
    lead: str
    trail: str
    tail: list[int]
    strips: bool


class ChatTokenizer:
    """A Renderer over a Hugging Face tokenizer.

    `controls` are its control tokens by their texts. `end_id` ends a sampled action; generation stops at any of `stop_ids`.
    `opened` is the thinking that the generation prompt has begun ("<think>\\n", or empty): `decode` puts it before the sampled
    text, `encode_action` takes it away.
    """

    def __init__(self, tokenizer: Tokenizer, glue: Glue = CHATML, name: str = "tokenizer") -> None:
        self._tokenizer, self._name = tokenizer, name
        self.folder: Path | None = None  # that it was loaded from
        self._plain, controls = _without_controls(tokenizer, name)
        self.controls: Mapping[str, int] = controls
        self._tags = {str(token): number for number, token in tokenizer.get_added_tokens_decoder().items() if not token.special}
        self._pattern = re.compile("|".join(map(re.escape, sorted(controls, key=len, reverse=True))) or r"(?!)")
        tokenizer.encode_special_tokens = False
        self._turns: dict[Role, _Turn] = {"system": self._turn(glue.system), "assistant": self._turn(glue.assistant)}
        self._users = {before: self._turn(frame) for before, frame in glue.users.items()}
        self._opening = self._ids(glue.opening)
        if not self._pattern.match(glue.assistant.after):
            raise TokenizerError(f"{name} has no token that ends a turn in {glue.assistant.after!r}; {SUPPORTED}")
        self.end_id, *self._closing = self._turns["assistant"].tail
        self.stop_ids = [self.end_id]
        turns = [*self._turns.values(), *self._users.values()]
        self._marks = {*controls.values()} & {number for turn in turns for number in (*turn.head, *turn.tail)}
        self.thinks = THINK in controls and THOUGHT in controls
        _, think, after = glue.opening.rpartition(THINK)
        self.opened = think + after if think and THOUGHT not in after else ""
        # A written action may say <think> as the model does, where that is a token but no special one; it cannot end a turn.
        tokenizer.encode_special_tokens = True

    @classmethod
    def load(cls, model_path: Path | str, settings: AgentSettings | None = None) -> "ChatTokenizer":
        """Load a Hugging Face folder. Raises TokenizerError if it or its chat template does not work for the agent."""
        folder, settings = Path(model_path), settings or AgentSettings()
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise TokenizerError(f"{file} does not exist; model_path must be a Hugging Face folder with a tokenizer.json")
        with guarded(file):
            tokenizer = Tokenizer.from_file(str(file))
        # A file may keep how its last user cut and filled texts.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        template = Template.load(folder, settings.template_arguments)
        with guarded(file), rendering():
            glue = read_glue(template)
            renderer = cls(tokenizer, glue, str(file))
            renderer.folder = folder
            renderer._learn_stops(folder)
            renderer._prove(template, glue)
        renderer._suit(settings)
        return renderer

    def _learn_stops(self, folder: Path) -> None:
        """Add the ends that the model's generation configuration names, such as a text's end besides a turn's."""
        ends = [self._tokenizer.token_to_id(token_text(special_tokens(folder).get("eos_token")))]
        if (folder / "generation_config.json").is_file():
            named = read_json(folder / "generation_config.json").get("eos_token_id")
            ends += named if isinstance(named, list) else [named]
        self.stop_ids += sorted({end for end in ends if isinstance(end, int)} - {self.end_id})

    def _prove(self, template: Template, glue: Glue) -> None:
        """Raises TokenizerError unless the ids of a probe conversation are those of the template's whole rendering."""
        whole = self.whole(template.render(taken(template, PROBE), opening=True))
        turns = pairwise([("system", ""), *PROBE])
        ours = [token for (before, _), (role, text) in turns for token in self.message(role, text, before)]
        if [*ours, *self._opening] != whole or not self._parts_stand_alone(glue):
            raise TokenizerError(f"the turns of {self._name} cannot be tokenised one by one; {SUPPORTED}")

    def _parts_stand_alone(self, glue: Glue) -> bool:
        """Return whether a part of a turn has the same ids whatever follows it: another part, or what ends the turn."""
        if glue.users["user"] == glue.users["assistant"]:
            return True
        follows = (glue.users["system"].before, glue.users["user"].before, glue.opening)
        joins = [self._pattern.split(text, maxsplit=1)[0] for text in follows]
        return all(self.spelt(end + join) == self.spelt(end) + self.spelt(join) for end in ENDS for join in joins)

    def _suit(self, settings: AgentSettings) -> None:
        if settings.thinking == "native" and not self.thinks:
            raise TokenizerError(
                f"{self._name} has no {THINK} token, the model does not think by itself: set agent.thinking to tag"
            )
        if settings.thinking == "tag" and self.opened and settings.think_tag != "think":
            raise TokenizerError(f"the chat template of {self._name} opens {THINK} itself: set agent.thinking to native")

    @property
    def vocab_size(self) -> int:
        """Return how many rows of embeddings its ids need: one more than the largest, for a vocabulary may have gaps."""
        return 1 + max(self._tokenizer.get_vocab().values())

    def message(self, role: Role, text: str, after: Role = "assistant", tags: Sequence[Span] = ()) -> list[int]:
        """Return a turn, or a part of one. Control tokens in its text become plain, but for `tags` that are not special."""
        turn = self._users[after] if role == "user" else self._turns[role]
        start, stop = (len(text) - len(text.lstrip()), len(text.rstrip())) if turn.strips else (0, len(text))
        ids, before = list(turn.head), turn.lead
        for first, last in tags:
            if text[first:last] in self._tags:
                ids += [*self.spelt(before + text[start:first]), self._tags[text[first:last]]]
                before, start = "", last
        return [*ids, *self.spelt(before + text[start:stop] + turn.trail), *turn.tail]

    def pictures(self, images: Sequence[bytes]) -> list[int]:
        return []

    def generation_prompt(self) -> list[int]:
        return list(self._opening)

    def history(self, sampled: list[int]) -> list[int]:
        """Return the same ids, thinking and all, under the generation prompt they were sampled from."""
        end = [] if sampled and sampled[-1] in self.stop_ids else [self.end_id]
        return [*self._opening, *sampled, *end, *self._closing]

    def encode_action(self, text: str) -> list[int]:
        """Return an action that was written, not sampled (scripted policies), closed like a sampled one. What would mark a turn
        in it becomes plain text, and then so do all control tokens.
        """
        content = text.removeprefix(self.opened) if self.opened in text else text.removeprefix(self.opened.rstrip())
        ids = self._ids(content)
        return [*(self.spelt(content) if self._marks.union(self.stop_ids).intersection(ids) else ids), self.end_id]

    def decode(self, ids: list[int]) -> str:
        """Return the text of a sampled action with the thinking that its prompt began, without its closing marker."""
        body = ids[:-1] if ids and ids[-1] in self.stop_ids else ids
        return self.opened + self._tokenizer.decode(body, skip_special_tokens=False)

    def spelt(self, text: str) -> list[int]:
        """Return the ids of a text, none of them a control token."""
        if len(text) > LONG_CHARS:  # of several texts at once it lets other threads run meanwhile
            return self._plain.encode_batch([text], add_special_tokens=False)[0].ids
        return self._plain.encode(text, add_special_tokens=False).ids

    def whole(self, text: str) -> list[int]:
        """Return the ids of a rendered text, whose control tokens are such."""
        self._tokenizer.encode_special_tokens = False
        try:
            return self._ids(text)
        finally:
            self._tokenizer.encode_special_tokens = True

    def _ids(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def _turn(self, frame: Frame) -> _Turn:
        """Return a frame cut where plain text begins and ends, for there the message's text is tokenised with it."""
        last = max((match.end() for match in self._pattern.finditer(frame.before)), default=0)
        match = self._pattern.search(frame.after)
        first = match.start() if match else len(frame.after)
        head, tail = self._ids(frame.before[:last]), self._ids(frame.after[first:])
        return _Turn(head, frame.before[last:], frame.after[:first], tail, frame.strips)


def _without_controls(tokenizer: Tokenizer, name: str) -> tuple[Tokenizer, dict[str, int]]:
    """Return the tokenizer without its control tokens, and these. Raises TokenizerError if text could still become one."""
    plain = Tokenizer(tokenizer.model)
    if tokenizer.normalizer is not None:
        plain.normalizer = tokenizer.normalizer
    if tokenizer.pre_tokenizer is not None:
        plain.pre_tokenizer = tokenizer.pre_tokenizer
    spaces, controls = [], {}
    for number, token in tokenizer.get_added_tokens_decoder().items():
        text = str(token)
        if number not in plain.encode(text, add_special_tokens=False).ids:
            controls[text] = number
        elif token.special or text.replace("▁", " ").strip():
            raise TokenizerError(
                f"{name} makes the control token {text} of plain text, so a page could forge a turn: use another model"
            )
        else:  # Gemma adds the runs of white space that its vocabulary has; they control nothing
            spaces.append(token)
    plain.add_tokens(spaces)
    return plain, controls
