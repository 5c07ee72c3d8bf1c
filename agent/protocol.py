"""The action grammar: one action is `<think>…</think>` followed by `<code>…</code>`, and nothing else."""

import re
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class Action:
    """A well-formed action: what the model thought and the cell it wants to run."""

    think: str
    code: str


@dataclass(frozen=True)
class Malformed:
    """An action outside the grammar; `reason` is what the model is told."""

    reason: str


@lru_cache(maxsize=16)
def _grammar(think: str, code: str) -> re.Pattern[str]:
    return re.compile(rf"\s*<{think}>(.*?)</{think}>\s*<{code}>(.*?)</{code}>\s*", re.DOTALL)


def parse_action(text: str, think: str = "think", code: str = "code") -> Action | Malformed:
    """Parse a model turn strictly. Every text maps to exactly one Action or one Malformed; nothing raises."""
    for tag in (think, code):
        opened, closed = text.count(f"<{tag}>"), text.count(f"</{tag}>")
        if opened == 0:
            return Malformed(f"there is no <{tag}> block")
        if closed == 0:
            return Malformed(f"the <{tag}> block is not closed")
        if opened > 1 or closed > 1:
            return Malformed(f"there is more than one <{tag}> block")
    match = _grammar(think, code).fullmatch(text)
    if match is None:
        return Malformed(f"an action is <{think}>…</{think}> then <{code}>…</{code}> and nothing around them")
    if not match[2].strip():
        return Malformed(f"the <{code}> block is empty")
    return Action(match[1].strip(), match[2].strip())
