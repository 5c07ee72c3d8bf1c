"""The message tree of one episode and its view: the cells and summaries between the task and the tail, and the changes that the
agent may request. The tree is held small while the episode waits for its policy.
"""

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from nbrl.agent.context.notepad import cut_text
from nbrl.agent.messages import Message
from nbrl.agent.trajectory import Node, NodeKind

MAX_REQUESTS, MAX_CELLS, MAX_TOLD = 64, 1_000, 4


@dataclass(frozen=True, slots=True)
class MessageTokens:
    """One message in view and its token ids."""

    kind: NodeKind
    ids: "array[int]"
    message: Message


@dataclass(slots=True, eq=False)
class Shown:
    """A cell, or a summary in place of `cells`: their numbers, ascending. `step` is the step that made it."""

    cells: tuple[int, ...]
    step: int
    parts: tuple[MessageTokens, ...]
    summary: str = ""
    pinned: bool = False

    @property
    def size(self) -> int:
        return sum(len(part.ids) for part in self.parts)


class Request(BaseModel):
    """A change of the view that a cell requests."""

    model_config = ConfigDict(extra="forbid", strict=True)

    do: Literal["drop", "summarise", "pin", "unpin", "recall"]
    cells: list[Annotated[int, Field(ge=0, lt=MAX_CELLS)]] = Field(min_length=1, max_length=MAX_CELLS)
    text: str = ""

    @field_validator("text")
    @classmethod
    def _short(cls, text: str) -> str:
        return cut_text(text)


def read_requests(reported: Any) -> list[Request]:
    """Return the valid requests of a kernel's report; invalid ones are ignored."""
    listed = reported.get("requests") if isinstance(reported, dict) else None
    requests = []
    for each in listed[:MAX_REQUESTS] if isinstance(listed, list) else []:
        try:
            requests.append(Request.model_validate(each))
        except (ValidationError, RecursionError):
            continue
    return requests


def _find(view: Sequence[Shown], cell: int) -> Shown | None:
    """Return the item that represents a cell in the view: the cell itself, else a summary of it."""
    covering = [shown for shown in view if cell in shown.cells]
    return min(covering, key=lambda shown: bool(shown.summary), default=None)


def place(view: list[Shown], shown: Shown) -> None:
    """Put `shown` where its first cell belongs."""
    behind = (index for index, other in enumerate(view) if other.cells[0] > shown.cells[0])
    view.insert(next(behind, len(view)), shown)


class Editor:
    """Applies requests to a view. `every` are all cells by number; `summary` makes the parts of a summary."""

    def __init__(
        self, view: Sequence[Shown], every: Sequence[Shown], summary: Callable[[tuple[int, ...], str], Shown | None]
    ) -> None:
        self.view, self._every, self._summary = list(view), every, summary
        self.ignored: list[str] = []

    def apply(self, request: Request) -> None:
        """Apply a request. Cells that are not in view are skipped; `ignored` reports them."""
        if request.do == "recall":
            self._recall(request.cells)
            return
        items = {cell: _find(self.view, cell) for cell in request.cells}
        missing = [cell for cell, shown in items.items() if shown is None]
        if missing:
            self._ignore(request.do, f"cell {missing[0]} is not in view")
        chosen = {id(shown): shown for shown in items.values() if shown is not None}
        match request.do:
            case "pin" | "unpin":
                for shown in chosen.values():
                    shown.pinned = request.do == "pin"
            case "drop":
                self.view = [shown for shown in self.view if id(shown) not in chosen]
            case "summarise" if chosen:
                cells = tuple(sorted({cell for shown in chosen.values() for cell in shown.cells}))
                summary = self._summary(cells, request.text)
                if summary is None:
                    self._ignore(request.do, "its text is empty")
                    return
                self.view = [shown for shown in self.view if id(shown) not in chosen]
                place(self.view, summary)

    def _recall(self, cells: list[int]) -> None:
        for cell in cells:
            if not 0 <= cell < len(self._every):
                self._ignore("recall", f"there is no cell {cell}")
            elif self._every[cell] not in self.view:
                place(self.view, self._every[cell])

    def _ignore(self, what: str, reason: str) -> None:
        if len(self.ignored) < MAX_TOLD:
            self.ignored.append(f"context.{what} was ignored: {reason}.")


@dataclass(frozen=True, slots=True)
class _Run:
    parent: int
    kind: NodeKind
    step: int
    ids: "array[int]"
    logprobs: "array[float]"
    weights_version: str


_NONE: "array[float]" = array("d")


class Tree:
    """Nodes in order of creation, so that a parent comes before its children."""

    def __init__(self) -> None:
        self._runs: list[_Run] = []

    def add(
        self,
        parent: int,
        kind: NodeKind,
        step: int,
        ids: "array[int]",
        logprobs: Iterable[float] = (),
        weights_version: str = "",
    ) -> int:
        """Add a node and return its number. `ids` is kept, not copied."""
        self._runs.append(_Run(parent, kind, step, ids, array("d", logprobs) or _NONE, weights_version))
        return len(self._runs) - 1

    def nodes(self) -> list[Node]:
        return [
            Node(
                parent=run.parent,
                kind=run.kind,
                step=run.step,
                token_ids=run.ids.tolist(),
                logprobs=run.logprobs.tolist(),
                weights_version=run.weights_version,
            )
            for run in self._runs
        ]
