"""The host's view of the notepad: validated, capped, rendered as part of the tail."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

MAX_ITEMS, MAX_CHARS = 64, 2_000


def _cut(text: str) -> str:
    return text if len(text) <= MAX_CHARS else text[:MAX_CHARS] + "…"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Item(_Part):
    text: str
    done: bool = False

    @field_validator("text")
    @classmethod
    def _short(cls, text: str) -> str:
        return _cut(text)


class NotepadState(_Part):
    """Plan, facts and draft as the kernel last reported them; items beyond the caps are dropped, long texts cut."""

    plan: list[Item] = Field(default_factory=list)
    facts: list[str] = Field(default_factory=list)
    draft: str = ""

    @field_validator("plan", "facts", mode="before")
    @classmethod
    def _few(cls, items: Any) -> Any:
        return items[:MAX_ITEMS] if isinstance(items, list) else items

    @field_validator("facts")
    @classmethod
    def _short_facts(cls, facts: list[str]) -> list[str]:
        return [_cut(fact) for fact in facts]

    @field_validator("draft")
    @classmethod
    def _short_draft(cls, draft: str) -> str:
        return _cut(draft)

    def render(self) -> str:
        lines = [f"[{'x' if item.done else ' '}] {item.text}" for item in self.plan]
        lines += [f"- {fact}" for fact in self.facts]
        if self.draft:
            lines.append(self.draft)
        return "\n".join(lines)


class State(_Part):
    """What a kernel reports after a cell."""

    answer: str | None = None
    notepad: NotepadState = Field(default_factory=NotepadState)

    @field_validator("answer")
    @classmethod
    def _short(cls, answer: str | None) -> str | None:
        return None if answer is None else _cut(answer)


def read_state(reported: Any, previous: State) -> State:
    """The kernel's report if it is valid, else the previous state: a cell that breaks its notepad keeps the old one in view."""
    try:
        return State.model_validate(reported)
    except (ValidationError, RecursionError):
        return previous
