"""The host's view of the notepad: validated, capped, rendered as part of the tail."""

from itertools import accumulate
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from nbrl.agent.text import storable

MAX_ITEMS, MAX_CHARS, REPORT_CHARS, ANSWER_CHARS = 64, 2_000, 30_000, 20_000
MARKS = {"todo": " ", "doing": "~", "done": "x"}


def cut_text(text: str, chars: int = MAX_CHARS) -> str:
    """Return the start of a text too long for a report, without halves of surrogate pairs, which cannot be stored."""
    text = text if len(text) <= chars else text[:chars] + "…"
    return storable(text)


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
    """Plan, facts and draft as the kernel last reported them; items beyond the caps are dropped, long texts cut.

    Plan and facts together have at most REPORT_CHARS characters: they are tokenised before every action.
    """

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

    @model_validator(mode="after")
    def _bounded(self) -> "NotepadState":
        ends = list(accumulate(len(text) for text in [*(item.text for item in self.plan), *self.facts]))
        plan = len(self.plan)
        self.plan = [item for item, end in zip(self.plan, ends, strict=False) if end <= REPORT_CHARS]
        self.facts = [fact for fact, end in zip(self.facts, ends[plan:], strict=True) if end <= REPORT_CHARS]
        return self

    def render(self) -> str:
        lines = [f"[{MARKS[item.state]}] {item.text}" for item in self.plan]
        lines += [f"- {fact}" for fact in self.facts]
        if self.draft:
            lines.append(self.draft)
        return "\n".join(lines)


def notes(recorded: str) -> str:
    """Return the notepad of a recorded step as a reader sees it; what is no notepad is shown as it is."""
    try:
        return NotepadState.model_validate_json(recorded).render()
    except ValidationError:
        return recorded


class State(_Part):
    """A kernel's report after a cell: its notepad and its answer."""

    answer: str | None = None
    notepad: NotepadState = Field(default_factory=NotepadState)

    @field_validator("answer")
    @classmethod
    def _short(cls, answer: str | None) -> str | None:
        return None if answer is None else cut_text(answer, ANSWER_CHARS)


def read_state(reported: Any, previous: State) -> State:
    """Return the kernel's report if it is valid, else the previous state: a cell that breaks its notepad keeps the old one in
    view.

    Its requests to change the context are read by nbrl.agent.context.view.read_requests.
    """
    try:
        fields = {key: value for key, value in reported.items() if key != "requests"} if isinstance(reported, dict) else reported
        return State.model_validate(fields)
    except (ValidationError, RecursionError):
        return previous
