"""Progress: one live line a node on a terminal, one line an iteration elsewhere; and each node's wall seconds."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

T = TypeVar("T")


@dataclass
class Line:
    """State of one node of the pass at hand."""

    name: str
    started: float = field(default_factory=time.monotonic)
    ended: float | None = None
    done: int = 0
    total: int = 0
    note: str = ""

    def render(self) -> tuple[Text, str, str]:
        mark = Text("✓", "green") if self.ended else Text("•", "yellow")
        count = f"{self.done}/{self.total}" if self.total else ""
        seconds = (self.ended or time.monotonic()) - self.started
        return mark, f"{self.name} {count} {self.note}".strip(), f"{seconds:6.1f} s"


class Watch:
    """What a flow tells of itself. `seconds` holds the wall time of each node since the last `begin`."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True)
        self.seconds: dict[str, float] = {}
        self._title = ""
        self._lines: list[Line] = []
        self._live = Live(get_renderable=self._render, console=self.console, refresh_per_second=5, transient=True)

    def __enter__(self) -> "Watch":
        if self.console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._live.is_started:
            self._live.stop()

    def begin(self, title: str) -> None:
        """A new pass: the lines and seconds of the last one go."""
        self._title, self._lines, self.seconds = title, [], {}

    def say(self, text: str) -> None:
        """A lasting line."""
        self.console.print(text, highlight=False, soft_wrap=True)

    def line(self, name: str, total: int = 0) -> Line:
        self._lines.append(Line(name, total=total))
        return self._lines[-1]

    async def node(
        self, name: str, work: Awaitable[T], total: int = 0, expect: Callable[[Callable[[int], None]], None] | None = None
    ) -> T:
        """Await `work` under a line of its own; `expect` receives the function that moves its count."""
        line = self.line(name, total)
        if expect is not None:
            expect(lambda done: setattr(line, "done", done))
        try:
            return await work
        finally:
            line.ended = time.monotonic()
            self.seconds[name] = self.seconds.get(name, 0.0) + line.ended - line.started

    def _render(self) -> Table:
        table = Table.grid(padding=(0, 1))
        table.add_row("", Text(self._title, "bold"), "")
        for line in self._lines:
            table.add_row(*line.render())
        return table
