"""Joins the agent's protocols to the sandbox's kernel."""

from agent.kernel import CellResult
from agent.prelude import STATE_EXPRESSION
from agent.trajectory import Output
from sandbox.kernel import SandboxKernel


class SandboxedKernel:
    """agent.kernel.Kernel over a sandboxed kernel; the agent's state travels back with each cell's reply."""

    def __init__(self, kernel: SandboxKernel) -> None:
        self._kernel = kernel

    async def execute(self, code: str, timeout: float) -> CellResult:
        execution = await self._kernel.execute(code, timeout=timeout, expressions={"state": STATE_EXPRESSION})
        outputs = [Output(kind=output.kind, text=output.text) for output in execution.outputs]
        state = execution.expressions.get("state", {}).get("application/json")
        return CellResult(execution.status, outputs, state)
