"""Who looks on while an episode runs."""

from typing import Protocol

from nbrl.agent.trajectory import Step


class Watcher(Protocol):
    """Told of each step as it happens, `index` from 0. Called from the loop: must be quick and must not raise."""

    def asked(self, index: int, tokens: int) -> None:
        """The policy is asked for an action after a prompt of `tokens` tokens."""

    def acted(self, index: int, step: Step) -> None:
        """The action is there; its cell has not run yet and does not when it is malformed."""

    def observed(self, index: int, step: Step) -> None:
        """The step is complete."""
