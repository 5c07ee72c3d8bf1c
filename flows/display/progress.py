"""Shows the progress of a run: one live line per node on a terminal, and permanent lines everywhere."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text


@dataclass
class ProgressLine:
    """One node or service. `seconds` is None while it runs; the line then shows the time since it appeared."""

    name: str
    shown_since: float = field(default_factory=time.monotonic)
    seconds: float | None = None
    done: int = 0
    total: int = 0

    def render(self) -> tuple[Text, str, str]:
        mark = Text("•", "yellow") if self.seconds is None else Text("✓", "green")
        count = f"{self.done}/{self.total}" if self.total else ""
        seconds = time.monotonic() - self.shown_since if self.seconds is None else self.seconds
        return mark, f"{self.name} {count}".strip(), f"{seconds:6.1f} s"


class ProgressDisplay:
    """A nbrl.tasks.services.progress.Progress that writes to a console; a context in which the live lines are shown.

    `listeners` get each permanent line too, in the thread that says it.
    """

    def __init__(self, console: Console, *listeners: Callable[[str], None]) -> None:
        self._console = console
        self._listeners = list(listeners)
        self._title = ""
        self._lines: list[ProgressLine] = []
        self._live = Live(get_renderable=self._render, console=console, refresh_per_second=5, transient=True)

    def __enter__(self) -> "ProgressDisplay":
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._live.is_started:
            self._live.stop()

    def begin(self, title: str) -> None:
        self._title = title
        self._lines = [line for line in self._lines if line.seconds is None]  # what runs beside the parts goes on

    def started(self, name: str) -> None:
        self._lines.append(ProgressLine(name))

    def advanced(self, name: str, done: int, total: int) -> None:
        line = self._line(name)
        line.done, line.total = done, total

    def ended(self, name: str, seconds: float) -> None:
        self._line(name).seconds = seconds

    def say(self, text: str) -> None:
        self._console.print(text, highlight=False, soft_wrap=True, markup=False)
        for listener in self._listeners:
            listener(text)

    def add_listener(self, listener: Callable[[str], None]) -> None:
        """Send the permanent lines to `listener` from now on."""
        self._listeners.append(listener)

    def counted(self) -> tuple[str, ProgressLine] | None:
        """Return the title and the newest line that counts items and has not ended, if there is one."""
        counting = [line for line in self._lines if line.total and line.seconds is None]
        return (self._title, counting[-1]) if counting else None

    def _line(self, name: str) -> ProgressLine:
        """Return the newest line of this name."""
        return next(line for line in reversed(self._lines) if line.name == name)

    def _render(self) -> Table:
        table = Table.grid(padding=(0, 1))
        table.add_row("", Text(self._title, "bold"), "")
        for line in self._lines:
            table.add_row(*line.render())
        return table
