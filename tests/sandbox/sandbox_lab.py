"""How the tests of the sandbox get at kernels."""

import asyncio
import copy
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Literal

from nbrl.sandbox.jupyter.outputs import Execution
from nbrl.sandbox.kernel import SandboxKernel
from nbrl.sandbox.pool import CallHandler, KernelPool
from nbrl.sandbox.settings import KernelLimits
from nbrl.sandbox.start.zygote import Zygote

Provisioner = Literal["zygote", "bubblewrap"]
# What a pool applies to each kernel by itself: its zygote need not know.
OF_KERNELS = {
    "cell_timeout_s", "interrupt_grace_s", "output_bytes", "image_bytes", "images", "expression_bytes", "message_bytes",
    "call_timeout_s", "call_bytes", "calls_per_kernel", "calls_per_s", "collect_files", "collect_file_bytes", "collect_bytes",
}  # fmt: skip


class Lab:
    """Real kernels of one provisioner, in a pool for each test; nothing is kept warm or imported ahead unless asked."""

    def __init__(self, provisioner: Provisioner) -> None:
        self.provisioner = provisioner

    def settings(self, **fields: Any) -> KernelLimits:
        return KernelLimits(**{"provisioner": self.provisioner, "warm": 0, "preload": (), "max_live": 4, **fields})

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


class _Forks(KernelPool):
    """A pool with other settings of its kernels, which another pool's zygote forks."""

    def __init__(self, settings: KernelLimits, prelude: str, shared: KernelPool) -> None:
        super().__init__(settings, prelude=prelude)
        self._shared = shared

    async def _living_zygote(self) -> Zygote:
        zygote = copy.copy(await self._shared._living_zygote())
        zygote._settings = self._settings
        return zygote


class SharedLab(Lab):
    """One zygote for all tests of a prelude but those whose settings it must know, which have a pool of their own."""

    def __init__(self, provisioner: Provisioner) -> None:
        super().__init__(provisioner)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._pools: dict[str, KernelPool] = {}

    def _wait(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def with_kernel(
        self,
        body: Callable[[SandboxKernel], Awaitable[Any]],
        *,
        tools: Mapping[str, CallHandler] | None = None,
        prelude: str = "",
        **fields: Any,
    ) -> Any:
        if fields.keys() - OF_KERNELS:
            return super().with_kernel(body, tools=tools, prelude=prelude, **fields)

        async def run() -> Any:
            if prelude not in self._pools:
                self._pools[prelude] = await KernelPool(self.settings(), prelude=prelude).__aenter__()
            async with (
                _Forks(self.settings(**fields), prelude, self._pools[prelude]) as pool,
                pool.kernel(tools) as kernel,
            ):
                return await body(kernel)

        return self._wait(run())

    def close(self) -> None:
        for pool in self._pools.values():
            self._wait(pool.__aexit__(None, None, None))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class SharedLabs(dict[Provisioner, SharedLab]):
    """The shared lab of each provisioner, made when it is first asked for."""

    def __missing__(self, provisioner: Provisioner) -> SharedLab:
        return self.setdefault(provisioner, SharedLab(provisioner))

    def close(self) -> None:
        for lab in self.values():
            lab.close()
