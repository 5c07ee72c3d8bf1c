"""The context: what the policy sees at each step, within its token limit, as a growing tree of message nodes."""

import json
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from nbrl.agent.budget import ChildBudget
from nbrl.agent.context.notepad import NotepadState, State
from nbrl.agent.context.view import Editor, MessageTokens, Request, Shown, Tree, place
from nbrl.agent.errors import ContextError
from nbrl.agent.messages import Message, Prompt, Role, Span, SystemPrompt
from nbrl.agent.policy import Generation
from nbrl.agent.settings import AgentSettings
from nbrl.agent.text import cut_middle
from nbrl.agent.tokens.tokenizer import Renderer
from nbrl.agent.trajectory import ROOT, Node, NodeKind, Step

FIRST_CHARS = 80
BUDGET_TOKENS = 64
"""More than the tokens by which the tails of two views with the same notepad can differ: their budgets' numbers."""


def render_tail(state: State, steps_left: int, tokens_left: int, note_chars: int | None = None, more: str = "") -> str:
    """Return notepad and budget, the last thing before an action. Tokens are rounded down to hundreds: a hint, not a meter.

    `more` is what is left of other budgets.
    """
    notes = state.notepad.render()
    if note_chars is not None:
        notes = cut_middle(notes, note_chars)
    notepad = f"<notepad>\n{notes}\n</notepad>\n" if notes else ""
    return f"{notepad}<budget>steps {steps_left}, tokens {tokens_left // 100 * 100}{more}</budget>"


def least_tokens(tokenizer: Renderer, settings: AgentSettings, system: SystemPrompt) -> int:
    """Return the tokens of the shortest possible prompt, with an empty task and notepad, and of the action after it."""
    top = tokenizer.message("system", system.text, tags=system.tags) + tokenizer.message("user", "", after="system")
    children = "" if settings.children is None else ChildBudget(settings.children).render()
    tail = render_tail(State(), settings.max_steps, 0, more=children)
    prompt = len(top) + len(tokenizer.message("user", tail, after="user"))
    return prompt + len(tokenizer.generation_prompt()) + settings.action_tokens


def check_room(tokenizer: Renderer, settings: AgentSettings, tools: str, instruction: str = "") -> None:
    """Raises ContextError if no question fits next to `tools`, as agent.tools.base.describe says them, and an instruction."""
    least = least_tokens(tokenizer, settings, settings.render_system_prompt(tools, instruction))
    if least > settings.context_tokens:
        raise ContextError(
            f"agent.context_tokens is {settings.context_tokens}, but the system prompt with its tools, an empty question and "
            f"agent.action_tokens ({settings.action_tokens}) already take {least}; raise it, or lower agent.action_tokens"
        )


@dataclass(frozen=True)
class Ask:
    """The next prompt of the policy, and the maximum tokens of its answer."""

    kind: Literal["cell", "summary"]
    prompt: Prompt
    room: int


@dataclass(frozen=True)
class _Tail:
    text: str
    ids: list[int]


@lru_cache(maxsize=256)
def _opening(tokenizer: Renderer, role: Role, text: str, tags: tuple[Span, ...] = ()) -> "array[int]":
    """Return a system prompt or task: the same for many episodes at once, so tokenised and held once."""
    return array("i", tokenizer.message(role, text, "system", tags))


class Context:
    """The message tree of one episode and the view of it that the policy has.

    `view` holds the cells and summaries between the task and the tail. `ask` trims it when the prompt would not fit, extends the
    tree to it and appends this step's tail; `sampled` appends the action to the tail; `observe` adds the cell to the view. Nodes
    are never changed: after a trim the path branches off behind the last message that both views share. Invariant: every prompt
    and the room after it are within `context_tokens`.
    """

    def __init__(
        self,
        tokenizer: Renderer,
        settings: AgentSettings,
        system: SystemPrompt,
        task: str,
        images: tuple[bytes, ...] = (),
        budget: Callable[[], str] | None = None,
    ) -> None:
        self._tokenizer, self._settings, self._tree = tokenizer, settings, Tree()
        self._opening = [Message("system", system.text), Message("user", task, images)]
        first, second = _opening(tokenizer, "system", system.text, system.tags), _opening(tokenizer, "user", task)
        second = second + array("i", pictures) if (pictures := tokenizer.pictures(images)) else second
        top = self._tree.add(ROOT, "system", 0, first)
        self._task = self._tail = self._tree.add(top, "task", 0, second)
        self._head, self._start = [first, second], len(first) + len(second)
        # The path below the task: what is shown and the node it ends in.
        self._path: list[tuple[Shown, int]] = []
        self._view: list[Shown] = []
        self._cells: list[Shown] = []
        self._leaving: list[Shown] = []
        self._summarised = False
        # A notepad whose tail did not fit, and how many tokens a tail with it has at least: many views may be tried with it.
        self._long: tuple[NotepadState | None, int] = (None, 0)
        self._unsent: list[tuple[int, str, str, str]] = []
        self._budget, self._budget_left = budget, ""

    @property
    def opening_tokens(self) -> int:
        """Return the tokens of the system prompt and the task."""
        return self._start

    @property
    def nodes(self) -> list[Node]:
        return self._tree.nodes()

    def ask(self, step: int, steps_left: int, state: State) -> Ask | None:
        """Return the next prompt: for a cell, or for a summary in soft trimming. None when the token limit is reached."""
        if self._budget is not None:
            self._budget_left = self._budget()
        tail = self._fit(self._view, steps_left, state)
        if tail is None:
            if self._settings.trim == "none":
                return None
            if self._settings.trim == "soft" and not self._summarised:
                summary = self._ask_summary(step, steps_left, state)
                if summary is not None:
                    return summary
            tail = self._trim(steps_left, state)
        return None if tail is None else Ask("cell", self._hang(step, self._view, tail), self._settings.action_tokens)

    def _fit(
        self, view: Sequence[Shown], steps_left: int, state: State, *, summary: bool = False, note_chars: int | None = None
    ) -> _Tail | None:
        """Return the tail after `view`, or None if the tail and what is to be sampled do not fit."""
        settings = self._settings
        left = settings.context_tokens - self._start - sum(shown.size for shown in view)
        room = settings.summary_tokens if summary else settings.action_tokens
        whole = note_chars is None
        if left <= room or (whole and self._long[0] is state.notepad and self._long[1] + room > left):
            return None
        asked = f"\n{settings.render_summary_prompt()}" if summary else ""
        text = render_tail(state, steps_left, left, note_chars, self._budget_left) + asked
        ids = self._tokenizer.message("user", text, after="user") + self._tokenizer.generation_prompt()
        if len(ids) + room <= left:
            return _Tail(text, ids)
        if whole and not summary:
            self._long = (state.notepad, len(ids) - BUDGET_TOKENS)
        return None

    def _hang(self, step: int, view: Sequence[Shown], tail: _Tail) -> Prompt:
        """Extend the tree to `view`, append the tail and return the complete path."""
        same = next((i for i, (old, new) in enumerate(zip(self._path, view, strict=False)) if old[0] is not new), None)
        del self._path[min(len(self._path), len(view)) if same is None else same :]
        node = self._path[-1][1] if self._path else self._task
        for shown in view[len(self._path) :]:
            for part in shown.parts:
                node = self._tree.add(node, part.kind, shown.step, part.ids)
            self._path.append((shown, node))
        ids = array("i", tail.ids)
        self._tail = self._tree.add(node, "tail", step, ids)
        parts = [part for shown in view for part in shown.parts]
        messages = [*self._opening, *(part.message for part in parts), Message("user", tail.text)]
        return Prompt([*self._head, *(part.ids for part in parts), ids], messages)

    def _trim(self, steps_left: int, state: State) -> _Tail | None:
        """Remove from the view what does not fit; a notepad too long for an empty view is shown with its middle cut out."""
        for view in list(self._smaller()):
            tail = self._fit(view, steps_left, state)
            if tail is not None:
                self._view = view
                return tail
        note_chars = len(state.notepad.render()) // 2
        while note_chars:
            tail = self._fit([], steps_left, state, note_chars=note_chars)
            if tail is not None:
                self._view = []
                return tail
            note_chars //= 2
        return None

    def _smaller(self) -> Iterator[list[Shown]]:
        """Yield views in the order in which they are tried: what is kept and fewer and fewer last steps, then less and less of
        the former, oldest first.
        """
        kept = [shown for shown in self._view if shown.pinned or (shown.summary and self._settings.trim == "soft")]
        recent = [shown for shown in self._recent() if shown not in kept]
        for skipped in range(len(recent) + 1):
            chosen = kept + recent[skipped:]
            yield [shown for shown in self._view if shown in chosen]
        for skipped in range(1, len(kept) + 1):
            yield kept[skipped:]

    def _recent(self) -> list[Shown]:
        return self._view[max(0, len(self._view) - self._settings.keep_steps) :]

    def _ask_summary(self, step: int, steps_left: int, state: State) -> Ask | None:
        """Ask for a summary of what leaves, with as much in view as fits: the last steps are left out first, then the oldest.

        None when no cell would leave or nothing fits.
        """
        recent = self._recent()
        leaving = [shown for shown in self._view if not shown.pinned and shown not in recent]
        view = list(self._view)
        while any(shown in leaving and not shown.summary for shown in view):
            tail = self._fit(view, steps_left, state, summary=True)
            if tail is not None:
                self._leaving = leaving
                return Ask("summary", self._hang(step, view, tail), self._settings.summary_tokens)
            view.pop(0 if view[-1] in leaving else -1)
        return None

    def summarised(self, step: int, text: str) -> str:
        """Replace what leaves by the policy's summary; return the text as shown, or empty if there was none.

        A summary is requested once between two cells: when it is empty, or what is left still does not fit, trimming is hard.
        """
        self._summarised = True
        seen = [shown for shown, _ in self._path if shown in self._leaving]
        cells = sorted({cell for shown in seen for cell in shown.cells})
        summary = self._summary(tuple(cells), self._within(text.strip(), self._settings.summary_tokens), step)
        if summary is None:
            return ""
        self._view = [shown for shown in self._view if shown not in self._leaving]
        place(self._view, summary)
        return summary.summary

    def _within(self, text: str, tokens: int) -> str:
        """Return the longest start of the text within this number of tokens."""
        marks = len(self._tokenizer.message("user", "", after="user"))
        while (count := len(self._tokenizer.message("user", text, after="user")) - marks) > tokens:
            text = text[: len(text) * tokens // count]
        return text.strip()

    def _summary(self, cells: tuple[int, ...], text: str, step: int) -> Shown | None:
        text = text.strip()
        return Shown(cells, step, (self._part("summary", text, "summary"),), text) if text else None

    def _part(self, kind: NodeKind, text: str, tag: str, images: tuple[bytes, ...] = ()) -> MessageTokens:
        message = Message("user", text, images, tag)
        # An observation comes after its action, a summary after the task, an observation or another summary.
        ids = self._tokenizer.message("user", message.text, after="assistant" if kind == "observation" else "user")
        return MessageTokens(kind, array("i", ids + self._tokenizer.pictures(images)), message)

    def sampled(self, step: int, generation: Generation) -> None:
        """Append the action to this step's tail, with the ids that the engine returned."""
        ids = array("i", generation.token_ids)
        self._tree.add(self._tail, "sampled", step, ids, generation.logprobs, generation.weights_version)

    def observe(self, index: int, step: Step, generation: Generation, requests: Iterable[Request] = ()) -> None:
        """Add a cell to the view, apply the changes it requested, and report in its output what could not be done.

        Images are part of the text as their sizes; policies that can see get them besides.
        """
        said = generation.text if generation.text is not None else self._tokenizer.decode(generation.token_ids)
        action = MessageTokens("action", array("i", self._tokenizer.history(generation.token_ids)), Message("assistant", said))
        cell = Shown((len(self._cells),), index, (action,))
        self._cells.append(cell)
        editor = Editor([*self._view, cell], self._cells, lambda cells, text: self._summary(cells, text, index))
        for request in requests:
            editor.apply(request)
        self._view = editor.view
        text = "\n".join(
            line for line in (cut_middle(step.observation, self._settings.observation_chars), *editor.ignored) if line
        )
        images = tuple(output.image for output in step.outputs if output.image)
        cell.parts = (action, self._part("observation", text, "output", images))
        self._unsent.append((cell.cells[0], step.think, step.code, step.observation))
        self._summarised = False

    def kernel_message(self) -> str:
        """Return the message to the kernel with the next cell: its number, the view, and the cells that were not sent before."""
        view = [
            {"cells": shown.cells, "tokens": shown.size, "pinned": shown.pinned, "summary": shown.summary[:FIRST_CHARS]}
            for shown in self._view
        ]
        message = json.dumps({"now": len(self._cells), "view": view, "history": self._unsent})
        self._unsent = []
        return message
