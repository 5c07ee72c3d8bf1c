"""Shows an episode in a terminal while it runs: each action and observation as it arrives, and a spinner while waiting."""

from typing import Self

from rich.console import Console

from nbrl.agent.settings import AgentSettings
from nbrl.agent.trajectory import Step
from nbrl.flows.display.trajectory import action, notepad, observation, task


class Live:
    """An nbrl.agent.watcher.Watcher and a context manager, which ends the spinner. Without a terminal there is no spinner."""

    def __init__(self, console: Console, question: str, settings: AgentSettings) -> None:
        self._console, self._question, self._settings = console, question, settings
        self._spinner = console.status("connecting")
        self._budget = self._notes = ""
        self._begun = False

    def __enter__(self) -> Self:
        self._spinner.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._spinner.stop()

    def asked(self, index: int, tokens: int) -> None:
        if not self._begun:  # an episode that cannot begin prints only an error
            self._console.print(task(self._question))
            self._begun = True
        left = max(0, self._settings.context_tokens - tokens)
        self._budget = f"step {index + 1} of {self._settings.max_steps}, {left} tokens left"
        self._spinner.update(f"{self._budget}: the model thinks")

    def acted(self, index: int, step: Step) -> None:
        for part in action(index, step):
            self._console.print(part)
        self._spinner.update(f"{self._budget}: the cell runs")

    def observed(self, index: int, step: Step) -> None:
        for part in (*observation(step), *notepad(step, self._notes)):
            self._console.print(part)
        self._notes = step.notepad
