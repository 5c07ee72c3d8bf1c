"""The interface for observing a running episode."""

from typing import Protocol

from nbrl.agent.trajectory import Step


class Watcher(Protocol):
    """Called by the loop at each step, `index` from 0. The methods must be quick and must not raise."""

    def asked(self, index: int, tokens: int) -> None:
        """The policy is asked for an action after a prompt of `tokens` tokens."""

    def acted(self, index: int, step: Step) -> None:
        """The action was sampled; its cell has not run yet, and does not run if the action is malformed."""

    def observed(self, index: int, step: Step) -> None:
        """The step is complete."""
