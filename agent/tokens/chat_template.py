"""A model's own chat template, read as glue: the text around each message.

The glue is found by rendering probes once; messages are then rendered without the template. That is right for templates that only
append, and it is checked: a probe conversation glued together must be what the template makes of it. Our conversation is
system, then users and assistants in any order; nbrl.agent.tokens.alternation has the templates that refuse this. Where a
template is not append-only, an earlier turn is kept as it was sampled:

- Qwen3 drops the thinking of earlier turns, and shows an empty think block before a last turn that did not think;
- DeepSeek-R1 and Qwen3.6 drop the thinking of earlier turns, also the begun block before every answer;
- Llama 3 takes white space off the ends of earlier turns;
- with `enable_thinking: false` Qwen3 opens an answer with an empty think block and leaves it out of earlier turns.

What depends on the first message (Qwen2.5's own system prompt when there is none, the dates of Llama 3.1 and later) is settled by
always having a system message. No clock is given to the template: its date is the argument `date_string`, or a fixed one.

The package `renderers` does this by a hand-written class for each family. It has none for Qwen2.5, and tokenises a message with
the control tokens in it, so that a page could end a turn.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

from nbrl.agent.errors import TokenizerError
from nbrl.agent.messages import Role
from nbrl.agent.settings import Argument
from nbrl.agent.tokens.rendering import render

SUPPORTED = "supported are templates that only append turns, such as those of Qwen2.5, Qwen3, Llama 3, DeepSeek-R1 and Gemma"
Turns = list[tuple[Role, str]]
TEXT_BYTES = 1 << 27  # of one file
SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
DATE, DATES = "26 Jul 2024", ("%d %b %Y", "%d %B %Y", "%Y-%m-%d")  # the date of a Llama's template, and forms of date_string


@dataclass(frozen=True)
class Frame:
    """The text around one role's text; `strips` if the template removes white space at the text's ends."""

    before: str
    after: str
    strips: bool = False

    def around(self, text: str) -> str:
        return self.before + (text.strip() if self.strips else text) + self.after


@dataclass(frozen=True)
class Glue:
    """Frames of the roles, and what precedes a sampled action: the assistant's `before`, perhaps with thinking begun.

    `users` are the frames of a user's text by the role before it.
    """

    system: Frame
    users: Mapping[Role, Frame]
    assistant: Frame
    opening: str


def alike(user: Frame) -> dict[Role, Frame]:
    """Return the frames of a user's text in a template that takes turns in any order."""
    return {"system": user, "user": user, "assistant": user}


_TURN = "<|im_start|>{}\n"
CHATML = Glue(
    system=Frame(_TURN.format("system"), "<|im_end|>\n"),
    users=alike(Frame(_TURN.format("user"), "<|im_end|>\n")),
    assistant=Frame(_TURN.format("assistant"), "<|im_end|>\n"),
    opening=_TURN.format("assistant"),
)


@dataclass(frozen=True)
class Template:
    """A chat template with its special tokens and arguments."""

    source: str
    variables: Mapping[str, Argument]
    name: str

    @classmethod
    def load(cls, folder: Path, arguments: Mapping[str, Argument]) -> "Template":
        """Load from a Hugging Face folder. Raises TokenizerError if it has no chat template."""
        file = folder / "tokenizer_config.json"
        config = read_json(file)
        source = config.get("chat_template")
        if isinstance(source, list):  # several, by name
            named = [entry for entry in source if isinstance(entry, dict) and entry.get("name") == "default"]
            source = named[0].get("template") if named else None
        if (folder / "chat_template.jinja").is_file():
            file = folder / "chat_template.jinja"
            source = _text(file)
        if not isinstance(source, str):
            raise TokenizerError(
                f"{file} has no chat template: use an instruction-tuned model, or give the model one; {SUPPORTED}"
            )
        config = special_tokens(folder)
        extra = config.get("extra_special_tokens")
        tokens = {name: config.get(name) for name in SPECIAL} | (extra if isinstance(extra, dict) else {})
        special = {str(name): token_text(token) for name, token in tokens.items()}
        return cls(source, {**special, **arguments}, str(file))

    def render(self, messages: Turns, opening: bool = False) -> str:
        """Render a conversation. Raises TokenizerError if the template is broken or refuses it."""

        return self.render_chat([{"role": role, "content": text} for role, text in messages], None, opening)

    def render_chat(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None, opening: bool) -> str:
        """Render messages of any roles, with the tools that they may call. Raises TokenizerError as `render` does."""
        given = {"tools": tools} if tools else {}
        variables = {"messages": messages, "add_generation_prompt": opening, **given, **self.variables}
        try:
            return render(self.source, self._day, variables)
        except TokenizerError as error:
            roles = ", ".join(dict.fromkeys(str(message.get("role")) for message in messages))
            raise TokenizerError(f"the chat template of {self.name} refuses {roles} turns: {error}") from error

    @cached_property
    def _day(self) -> str:
        """Return the date for a template with a clock, in ISO format: the same on every day."""
        text = str(self.variables.get("date_string", DATE)) if "strftime_now" in self.source else DATE
        for form in DATES:
            with suppress(ValueError):
                return datetime.strptime(text, form).date().isoformat()
        raise TokenizerError(f"template_arguments.date_string is {text!r}, which is no date; write it like {DATE}")

    @cached_property
    def _closing(self) -> str:
        """Return what ends the text where nothing is to be generated, as Phi-3's end of text; empty in most templates."""
        end, probe = str(self.variables.get("eos_token", "")), PROBE[:2]
        try:
            whole, begun = self.render(probe), self.render(probe, opening=True)
        except TokenizerError:  # it takes no system turn
            return ""
        ends = end and whole.endswith(end) and not begun.startswith(whole) and begun.startswith(whole.removesuffix(end))
        return end if ends else ""

    def turns(self, messages: Turns) -> str:
        """Return the messages as they are before others. Raises TokenizerError as `render` does."""
        return self.render(messages).removesuffix(self._closing)

    def glue(self) -> Glue:
        """Return the glue. Raises TokenizerError if the template does more than append."""
        system: tuple[Role, str] = ("system", " probe one ")
        user: tuple[Role, str] = ("user", " probe two ")
        act: tuple[Role, str] = ("assistant", "probe three")
        first = self.turns([system, user])
        turn = self._added(first, self.turns([system, user, user]))
        later, top = self._frame(turn, user[1]), self._frame(first, system[1])
        acted = self._frame(self._added(first, self.turns([system, user, act, user])), act[1])
        glue = Glue(
            system=Frame(top.before, top.after.removesuffix(turn), top.strips),
            users=alike(later),
            assistant=Frame(acted.before, acted.after.removesuffix(turn)),
            opening=self._added(first, self.render([system, user], opening=True)),
        )
        self.check(glue, PROBE if glue.opening.startswith(acted.before) else [])
        return glue

    def check(self, glue: Glue, shown: Turns) -> None:
        """Raises TokenizerError if the probe conversation, `shown` as the template takes it, is not what the glue makes of it."""
        if not shown or self.render(shown, opening=True) != glued(glue, PROBE):
            self._refuse()

    def cut(self, rendered: str, messages: Turns) -> list[str]:
        """Return the texts before, between and after those of the messages. Raises TokenizerError if one is missing."""
        around = []
        for _, text in messages:
            before, found, rendered = rendered.partition(text)
            if not found:
                self._refuse()
            around.append(before)
        return [*around, rendered]

    def _frame(self, rendered: str, text: str) -> Frame:
        """Return the texts before and after the first `text`."""
        shown = text if text in rendered else text.strip()
        before, matched, after = rendered.partition(shown)
        if not matched:
            self._refuse()
        return Frame(before, after, strips=shown != text)

    def _added(self, earlier: str, rendered: str) -> str:
        if not rendered.startswith(earlier):
            self._refuse()
        return rendered[len(earlier) :]

    def _refuse(self) -> NoReturn:
        raise TokenizerError(f"the chat template of {self.name} changes earlier turns when later ones come; {SUPPORTED}")


PROBE: Turns = [
    ("system", "Réply in \n\n cells."),
    ("user", "What is 6 × 7?"),
    ("assistant", "It is 42."),
    ("user", "  And\t8 × 9?\n"),
    ("user", "(two turns)"),
    ("assistant", "72, I'd say"),
    ("user", "\nGo on."),
]
"""A conversation of every kind of neighbours we have."""


def glued(glue: Glue, messages: Turns) -> str:
    """Return the messages as text, then `glue.opening`."""
    frames = [
        glue.users[before] if role == "user" else glue.system if role == "system" else glue.assistant
        for (before, _), (role, _) in zip([("system", ""), *messages], messages, strict=False)
    ]
    return "".join(frame.around(text) for frame, (_, text) in zip(frames, messages, strict=True)) + glue.opening


def read_json(file: Path) -> dict[str, Any]:
    """Return an object in a file; empty if it holds something else. Raises TokenizerError if it cannot be read."""
    try:
        content = json.loads(_text(file))
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{file} is not JSON: {error}; fetch or save the model again") from error
    return content if isinstance(content, dict) else {}


def _text(file: Path) -> str:
    if file.exists() and not file.is_file():  # a pipe would never end
        raise TokenizerError(f"{file} is no regular file; model_path must be a Hugging Face folder")
    try:
        if file.stat().st_size > TEXT_BYTES:
            raise TokenizerError(f"{file} has more than {TEXT_BYTES >> 20} MB, which no file of its kind has")
        return file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise TokenizerError(f"{file} cannot be read; model_path must be a Hugging Face folder: {error}") from error


def special_tokens(folder: Path) -> dict[str, Any]:
    """Return the settings of the tokenizer, with special tokens that older transformers kept in another file."""
    config, separate = read_json(folder / "tokenizer_config.json"), folder / "special_tokens_map.json"
    # As transformers does: what it saved with all added tokens in one file needs no other.
    return config if "added_tokens_decoder" in config or not separate.is_file() else config | read_json(separate)


def token_text(token: object) -> str:
    """Return a special token of tokenizer_config.json: a text, or an object with its content."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""
