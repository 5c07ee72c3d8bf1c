"""The agent's interface to a notebook kernel."""

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from nbrl.agent.trajectory import Output, Step


@dataclass(frozen=True)
class CellResult:
    """The result of a cell. `state` is the report of `in_kernel._State` in the same reply; hostile until validated."""

    status: Literal["ok", "error", "timeout", "dead"]
    outputs: list[Output] = field(default_factory=list)
    state: Any = None


class Kernel(Protocol):
    """A clean notebook kernel in which the prelude of nbrl.agent.kernels.prelude has run. Never raises for what a cell does.

    `message` is that of `Context.kernel_message` (nbrl.agent.context): the cell can read it, and the state is reported after
    that.
    """

    async def execute(self, code: str, timeout: float, message: str = "") -> CellResult: ...


class Watcher(Protocol):
    """Called by the loop at each step, `index` from 0. The methods must be quick and must not raise."""

    def asked(self, index: int, tokens: int) -> None:
        """Note that the policy is asked for an action after a prompt of `tokens` tokens."""

    def acted(self, index: int, step: Step) -> None:
        """Note that the action was sampled; its cell has not run yet, and does not run if the action is malformed."""

    def observed(self, index: int, step: Step) -> None:
        """Note that the step is complete."""
