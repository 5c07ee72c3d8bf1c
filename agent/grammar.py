"""The action grammar: thinking, then one cell, and nothing else.

The model thinks inside `<think>…</think>` because the prompt asks for it ("tag") or because it always does ("native"). A cell is
inside `<code>…</code>` ("tag") or in a Markdown block that opens with the line ```python and closes with the line ``` ("fence").
"""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

Thinking = Literal["tag", "native"]
CodeStyle = Literal["tag", "fence"]
FENCE = "```python"
CODE_TAG = "code"


@dataclass(frozen=True)
class Action:
    """A well-formed action: what the model thought and the cell it wants to run."""

    think: str
    code: str


@dataclass(frozen=True)
class Malformed:
    """An action outside the grammar; `reason` is shown to the model."""

    reason: str


@dataclass(frozen=True)
class Grammar:
    """The form of an action. `think_tag` is a name; native thinking is in `think` tags of the model's own."""

    thinking: Thinking = "tag"
    think_tag: str = "think"
    code_style: CodeStyle = "tag"

    @cached_property
    def tags(self) -> re.Pattern[str]:
        """Return a pattern of any tag of an action."""
        names = [self.think_tag, CODE_TAG] if self.code_style == "tag" else [self.think_tag]
        return re.compile(f"</?(?:{'|'.join(names)})>")

    @property
    def form(self) -> str:
        """Return what a prompt asks for: "Each turn, {form}."."""
        think = f"think inside <{self.think_tag}></{self.think_tag}>" if self.thinking == "tag" else "think first"
        code = f"inside <{CODE_TAG}></{CODE_TAG}>" if self.code_style == "tag" else f"as one {FENCE} block"
        return f"{think}, then write one cell {code}"

    def write(self, think: str, code: str) -> str:
        """Return an action in this grammar; `parse` gives back what it was made of, unless that holds tags or fences.

        What is blank around thinking and cell is taken away, but for the indentation of the cell's first line.
        """
        cell = f"<{CODE_TAG}>{code}</{CODE_TAG}>" if self.code_style == "tag" else f"{FENCE}\n{code}\n```"
        between = "" if self.thinking == self.code_style == "tag" else "\n"
        return f"<{self.think_tag}>{think}</{self.think_tag}>{between}{cell}"

    def parse(self, text: str) -> Action | Malformed:
        """Parse a model turn strictly. Every text maps to exactly one Action or one Malformed; nothing raises.

        Native thinking ends at its first closing tag and may hold anything; its opening tag may be missing, for some templates
        and servers keep it. Thinking in a tag may hold no tag and no line that looks like a fence.
        """
        if self.thinking == "native":
            return self._parse_native(text)
        reason = _misused(text, self.think_tag) or self._misused_code(text)
        if reason:
            return Malformed(reason)
        match = self._tagged.fullmatch(text)
        return self._action(match[1], match[2]) if match else self._shape()

    def parse_summary(self, text: str) -> tuple[str, str]:
        """Return the thinking and the plain text after it, which is empty if the thinking did not end."""
        opened, closed = f"<{self.think_tag}>", f"</{self.think_tag}>"
        if closed not in text:
            return (text, "") if opened in text else ("", text)
        think, _, summary = text.partition(closed) if self.thinking == "native" else text.rpartition(closed)
        return think, summary

    def _parse_native(self, text: str) -> Action | Malformed:
        opened, closed = f"<{self.think_tag}>", f"</{self.think_tag}>"
        think, found, rest = text.partition(closed)
        if not found:
            return Malformed(
                f"the thinking is not ended by {closed}" if opened in text else f"there is no thinking before {closed}"
            )
        reason = self._misused_code(rest)
        if reason:
            return Malformed(reason)
        match = self._code.fullmatch(rest)
        return self._action(think.lstrip().removeprefix(opened), match[1]) if match else self._shape()

    def _action(self, think: str, code: str) -> Action | Malformed:
        return Action(think.strip(), _cell(code)) if code.strip() else Malformed(f"the {self._block} block is empty")

    def _shape(self) -> Malformed:
        code = f"<{CODE_TAG}>…</{CODE_TAG}>" if self.code_style == "tag" else f"one {FENCE} block"
        return Malformed(f"an action is <{self.think_tag}>…</{self.think_tag}> then {code} and nothing around them")

    @property
    def _block(self) -> str:
        return f"<{CODE_TAG}>" if self.code_style == "tag" else FENCE

    def _misused_code(self, text: str) -> str | None:
        return _misused(text, CODE_TAG) if self.code_style == "tag" else _misused_fence(text)

    @cached_property
    def _code(self) -> re.Pattern[str]:
        if self.code_style == "tag":
            return re.compile(rf"\s*<{CODE_TAG}>(.*?)</{CODE_TAG}>\s*", re.DOTALL)
        return re.compile(rf"\s*{FENCE}[^\S\n]*\n(.*?)(?<=\n)```\s*", re.DOTALL)

    @cached_property
    def _tagged(self) -> re.Pattern[str]:
        return re.compile(rf"\s*<{self.think_tag}>(.*?)</{self.think_tag}>{self._code.pattern}", re.DOTALL)


def _cell(code: str) -> str:
    """Return the cell without blank lines around it. Its first line stays indented: IPython removes a common indentation."""
    body = code.strip()
    before = code[: code.index(body)]
    return before[len(before.rstrip(" \t")) :] + body


def _misused(text: str, tag: str) -> str | None:
    """Return the reason if a tag does not occur exactly once."""
    opened, closed = text.count(f"<{tag}>"), text.count(f"</{tag}>")
    if opened == 0:
        return f"there is no <{tag}> block"
    if closed == 0:
        return f"the <{tag}> block is not closed"
    if opened > 1 or closed > 1:
        return f"there is more than one <{tag}> block"
    return None


def _misused_fence(text: str) -> str | None:
    """Return why there is not exactly one block: a line that opens it and, later, a line that closes it."""
    lines = [line.rstrip() for line in text.split("\n") if line.startswith("```")]
    if not lines or FENCE not in lines:
        return f"there is no line {FENCE} that opens a block"
    if lines == [FENCE]:
        return f"the {FENCE} block is not closed by a line ```"
    if lines != [FENCE, "```"]:
        return "there is more than one ``` block" if len(lines) > 2 else f"a block opens with {FENCE} and closes with ```"
    return None
