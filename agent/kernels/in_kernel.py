"""Runs INSIDE the kernel: the names a cell can use. Sent as source text, so it imports nothing of this package.

It lives in a namespace of its own, so that a cell may call its variables `str`, `list` or `print`. Whatever this reports can be
forged by the cell; the host validates and caps it, and nothing that earns reward trusts it.
"""

import json

# The host's own caps, which the prelude gives; held to here as well, so that one long text does not cost the whole report.
MAX_ITEMS: int
MAX_CHARS: int
REPORT_CHARS: int
ANSWER_CHARS: int
MARKS: dict[str, str]


def _text(value: object, chars: int = MAX_CHARS) -> str:
    """Return text that can be sent: lone surrogates cannot."""
    try:
        return str(value)[: chars + 1].encode("utf-8", "replace").decode()
    except Exception:
        return "?"


def _several(items):  # type: ignore[no-untyped-def]
    try:
        return [items] if isinstance(items, (str, dict)) else list(items)
    except TypeError:
        return [items]


def _few(items: object) -> list:
    return list(items[:MAX_ITEMS]) if isinstance(items, (list, tuple)) else [items]


class Notepad:
    """Plan, facts and a draft that stay in view whatever leaves the context. Items are counted from 0."""

    def __init__(self) -> None:
        self.plan: list[dict] = []
        self.facts: list[str] = []
        self.draft: str = ""

    def add_todo(self, items: str | list) -> None:
        """Append one item or several to the plan."""
        self.plan += [{"text": str(item), "state": "todo"} for item in _several(items)]

    def mark_todo(self, index: int) -> None:
        """Item `index` of the plan is open again."""
        self._item(index)["state"] = "todo"

    def mark_doing(self, index: int) -> None:
        """Item `index` of the plan is being worked on."""
        self._item(index)["state"] = "doing"

    def mark_done(self, index: int) -> None:
        """Tick item `index` of the plan."""
        self._item(index)["state"] = "done"

    def update_todo(self, index: int, text: str) -> None:
        """Rewrite item `index` of the plan."""
        self._item(index)["text"] = str(text)

    def remove_todo(self, index: int) -> None:
        """Take item `index` out of the plan."""
        del self.plan[self._place(self.plan, index, "plan")]

    def clear_todo(self) -> None:
        """Empty the plan."""
        self.plan = []

    def add_facts(self, facts: str | list) -> None:
        """Append one fact or several."""
        self.facts += [str(fact) for fact in _several(facts)]

    def update_fact(self, index: int, text: str) -> None:
        """Rewrite fact `index`."""
        self.facts[self._place(self.facts, index, "facts")] = str(text)

    def remove_fact(self, index: int) -> None:
        """Take fact `index` out."""
        del self.facts[self._place(self.facts, index, "facts")]

    def clear_facts(self) -> None:
        """Forget all facts."""
        self.facts = []

    def write_draft(self, text: str) -> None:
        """Replace the draft."""
        self.draft = str(text)

    def clear(self) -> None:
        """Empty plan, facts and draft."""
        self.plan, self.facts, self.draft = [], [], ""

    def _place(self, items: list, index: int, name: str) -> int:
        if not -len(items) <= index < len(items):
            raise IndexError(f"there is no item {index} in the {name}: it has {len(items)}")
        return index

    def _item(self, index: int) -> dict:
        return self.plan[self._place(self.plan, index, "plan")]

    def __repr__(self) -> str:
        report = self._report()
        lines = [f"{i} [{MARKS[item['state']]}] {item['text']}" for i, item in enumerate(report["plan"])]
        lines += [f"{i} - {fact}" for i, fact in enumerate(report["facts"])]
        return "\n".join([*lines, report["draft"]]).rstrip() or "the notepad is empty"

    def _report(self) -> dict:
        """Return plain values whatever a cell has put here, no more of them than can be sent."""
        plan, facts, draft = [], [], _text(self.draft)
        left = REPORT_CHARS
        for item in _few(self.plan):
            known = item if isinstance(item, dict) else {"text": item}
            state = "done" if known.get("done") is True else known.get("state")
            text = _text(known.get("text", ""))
            left -= len(text)
            if left > 0:
                plan.append({"text": text, "state": state if state in list(MARKS) else "todo"})
        for fact in _few(self.facts):
            text = _text(fact)
            left -= len(text)
            if left > 0:
                facts.append(text)
        return {"plan": plan, "facts": facts, "draft": draft}


class Cell:
    """An earlier step: what was thought, run and seen. `history[i]`."""

    def __init__(self, number: int, think: str, code: str, output: str) -> None:
        self.number, self.think, self.code, self.output = number, think, code, output

    def __repr__(self) -> str:
        return f"cell {self.number}\n{self.code}\noutput:\n{self.output}"


class History:
    """Every earlier cell by its number, also those that have left the context; -1 is the one before this."""

    def __init__(self) -> None:
        self._cells: dict[int, Cell] = {}

    def _all(self) -> list[Cell]:
        _nbrl_state._receive_now()
        return [self._cells[number] for number in sorted(self._cells)]

    def __getitem__(self, number):  # type: ignore[no-untyped-def]
        cells = self._all()
        if isinstance(number, slice):
            return cells[number]
        if number in self._cells:
            return self._cells[number]
        if -len(cells) <= number < 0:
            return cells[number]
        raise IndexError(f"there is no cell {number}: there are {len(cells)} before this one")

    def __len__(self) -> int:
        return len(self._all())

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(self._all())

    def __repr__(self) -> str:
        return "\n".join(f"cell {cell.number}: {_first_line(cell.code)}" for cell in self) or "no cells before this one"


class CellContext:
    """The cells in view. A change asked for here shows from the next step on; cells that leave stay in `history`."""

    def drop(self, *cells: object) -> None:
        """Take cells out of view: numbers, ranges or lists of numbers."""
        _nbrl_state._ask("drop", cells)

    def summarise(self, cells: object, text: str) -> None:
        """Put `text` in the place of a cell or several. The summary answers to their numbers."""
        if not str(text).strip():
            raise ValueError("a summary needs text; to take cells out of view use context.drop")
        _nbrl_state._ask("summarise", (cells,), str(text))

    def pin(self, *cells: object) -> None:
        """Keep cells in view when older ones leave for want of room."""
        _nbrl_state._ask("pin", cells)

    def unpin(self, *cells: object) -> None:
        """Let cells leave again like any other."""
        _nbrl_state._ask("unpin", cells)

    def recall(self, *cells: object) -> None:
        """Bring cells back into view as they were."""
        _nbrl_state._ask("recall", cells)

    @property
    def cells(self) -> list[int]:
        """The numbers of the cells in view."""
        _nbrl_state._receive_now()
        return [number for shown in _nbrl_state.view for number in shown["cells"]]

    def __repr__(self) -> str:
        _nbrl_state._receive_now()
        lines = []
        for shown in _nbrl_state.view:
            numbers, summary = shown["cells"], shown["summary"]
            name = f"cell {numbers[0]}" if len(numbers) == 1 else f"cells {', '.join(map(str, numbers))}"
            head = f"summary: {summary}" if summary else _first_line(history[numbers[0]].code)
            lines.append(f"{name}{' (pinned)' if shown['pinned'] else ''}, {shown['tokens']} tokens: {head}")
        lines.append(f"this is cell {_nbrl_state.now}")
        return "\n".join(lines + [f"asked for: {each['do']} {each['cells']}" for each in _nbrl_state.requests])


def _first_line(text: str) -> str:
    return text.strip().split("\n")[0][:80]


def _numbers(cells: object) -> list[int]:
    if isinstance(cells, (list, tuple, set, range)):
        return [number for cell in cells for number in _numbers(cell)]
    if isinstance(cells, bool) or not isinstance(cells, int):
        raise TypeError(f"a cell is named by its number, not by {type(cells).__name__}")
    return [cells]


class _State:
    """Sent back with each cell's reply as application/json; each request brings a message of the host."""

    def __init__(self) -> None:
        self.answer: str | None = None
        self.requests: list[dict] = []
        self.view: list[dict] = []
        self.now, self._received, self._read = 0, "", ""
        self._notepad, self._history = notepad, history

    def receive(self, message: str):  # type: ignore[no-untyped-def]
        """Take the host's message with a cell, as JSON: the cell's number, what is in view, cells that have become history."""
        if message != self._received:
            news = json.loads(message)
            self._received, self.requests = message, []
            self.now, self.view = news["now"], news["view"]
            for number, *record in news["history"]:
                self._history._cells[number] = Cell(number, *record)
        return self

    def _receive_now(self) -> None:
        """Take the message at once: Jupyter evaluates the host's expression after the cell, and the cell needs it now."""
        try:
            expression = get_ipython().get_parent()["content"]["user_expressions"]["state"]  # type: ignore[name-defined]
            if expression != self._read:
                eval(expression)
                self._read = expression
        except Exception:
            return  # no Jupyter here: the message came before the cell

    def _ask(self, what: str, cells: object, text: str = "") -> None:
        self._receive_now()
        numbers = _numbers(cells)
        wrong = [number for number in numbers if not 0 <= number <= self.now]
        if wrong or not numbers:
            raise IndexError(f"there is no cell {wrong[0]}: this is cell {self.now}" if wrong else "name at least one cell")
        request = {"do": what, "cells": sorted(set(numbers)), "text": _text(text)}
        if sum(len(str(each)) for each in [*self.requests, request]) > REPORT_CHARS or len(self.requests) >= MAX_ITEMS:
            raise ValueError("too many changes of the context in one cell; ask for the rest in the next")
        self.requests.append(request)

    def _repr_json_(self) -> dict:
        """With an answer the notebook ends, so there is nothing to ask for any more, and the answer has that room.

        This is asked after each cell: without an answer it can be given in the next one, whatever its name was assigned to.
        """
        answer = None if self.answer is None else _text(self.answer, ANSWER_CHARS)
        requests = self.requests if answer is None else []
        if _shell is not None:
            _shell.user_ns.pop("submit_final_answer", None)
        return {"answer": answer, "notepad": self._notepad._report(), "requests": requests}

    def __repr__(self) -> str:
        return "state"


def submit_final_answer(answer: object) -> None:
    """End the trajectory with this answer; the last submission counts."""
    _nbrl_state.answer = str(answer)
    print("submitted")


try:
    _shell = get_ipython()  # type: ignore[name-defined]
    # The agent reads an error's last line alone, and to write the traceback of an endless recursion takes seconds.
    _shell.InteractiveTB.set_mode("Minimal")
except NameError:  # no Jupyter here
    _shell = None

notepad = Notepad()
history = History()
context = CellContext()
_nbrl_state = _State()
