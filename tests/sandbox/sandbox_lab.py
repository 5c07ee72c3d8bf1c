"""How the tests of the sandbox get at kernels."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Literal

from nbrl.sandbox.jupyter.outputs import Execution
from nbrl.sandbox.kernel import SandboxKernel
from nbrl.sandbox.pool import CallHandler, KernelPool
from nbrl.sandbox.settings import SandboxSettings


class Lab:
    """Real kernels of one provisioner; nothing is kept warm unless asked."""

    def __init__(self, provisioner: Literal["zygote", "bubblewrap"]) -> None:
        self.provisioner = provisioner

    def settings(self, **fields: Any) -> SandboxSettings:
        return SandboxSettings(**{"provisioner": self.provisioner, "warm": 0, "max_live": 4, **fields})

    def with_kernel(
        self,
        body: Callable[[SandboxKernel], Awaitable[Any]],
        *,
        tools: Mapping[str, CallHandler] | None = None,
        prelude: str = "",
        **fields: Any,
    ) -> Any:
        """What `body` returns for a clean kernel."""

        async def run() -> Any:
            async with KernelPool(self.settings(**fields), prelude=prelude) as pool, pool.kernel(tools) as kernel:
                return await body(kernel)

        return asyncio.run(run())

    def cells(self, *cells: str, **more: Any) -> list[Execution]:
        """One kernel's answers to `cells`."""

        async def body(kernel: SandboxKernel) -> list[Execution]:
            return [await kernel.execute(cell) for cell in cells]

        done: list[Execution] = self.with_kernel(body, **more)
        return done

    def value(self, code: str, **more: Any) -> str:
        """What the one cell `code` printed; it must succeed."""
        (done,) = self.cells(code, **more)
        assert done.status == "ok", done
        return "".join(output.text for output in done.outputs)
