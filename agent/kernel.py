"""The agent's interface to a notebook kernel."""

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from nbrl.agent.trajectory import Output


@dataclass(frozen=True)
class CellResult:
    """What a cell did. `state` is what `inside._State` reported with the same reply; hostile until validated."""

    status: Literal["ok", "error", "timeout", "dead"]
    outputs: list[Output] = field(default_factory=list)
    state: Any = None


class Kernel(Protocol):
    """A clean notebook kernel in which the prelude of nbrl.agent.kernels.prelude has run. Never raises for what a cell does.

    `told` is what `Context.told` of nbrl.agent.context gives: the cell can ask for it, and the state is reported after that.
    """

    async def execute(self, code: str, timeout: float, told: str = "") -> CellResult: ...
