"""The host's view of the notepad: validated, capped, rendered as part of the tail."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

MAX_ITEMS, MAX_CHARS = 64, 2_000
MARKS = {"todo": " ", "doing": "~", "done": "x"}


def cut_text(text: str) -> str:
    """The start of a text too long for what a kernel may report."""
    return text if len(text) <= MAX_CHARS else text[:MAX_CHARS] + "…"


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Item(_Part):
    text: str
    state: Literal["todo", "doing", "done"] = "todo"

    @field_validator("text")
    @classmethod
    def _short(cls, text: str) -> str:
        return cut_text(text)


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
        return [cut_text(fact) for fact in facts]

    @field_validator("draft")
    @classmethod
    def _short_draft(cls, draft: str) -> str:
        return cut_text(draft)

    def render(self) -> str:
        lines = [f"[{MARKS[item.state]}] {item.text}" for item in self.plan]
        lines += [f"- {fact}" for fact in self.facts]
        if self.draft:
            lines.append(self.draft)
        return "\n".join(lines)


class State(_Part):
    """What a kernel reports after a cell of its notepad and its answer."""

    answer: str | None = None
    notepad: NotepadState = Field(default_factory=NotepadState)

    @field_validator("answer")
    @classmethod
    def _short(cls, answer: str | None) -> str | None:
        return None if answer is None else cut_text(answer)


def read_state(reported: Any, previous: State) -> State:
    """The kernel's report if it is valid, else the previous state: a cell that breaks its notepad keeps the old one in view.

    What it asks of the context is not looked at here (agent.view.read_requests).
    """
    try:
        known = {key: value for key, value in reported.items() if key != "requests"} if isinstance(reported, dict) else reported
        return State.model_validate(known)
    except (ValidationError, RecursionError):
        return previous
