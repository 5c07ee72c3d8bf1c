"""Provides clean kernels: a few are kept warm, each serves one trajectory and is killed after use."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

from nbrl.sandbox.errors import SandboxError
from nbrl.sandbox.host_calls import CallHandler, HostCalls
from nbrl.sandbox.kernel import SandboxKernel
from nbrl.sandbox.settings import KernelLimits, SandboxSettings
from nbrl.sandbox.start import descriptors, fresh
from nbrl.sandbox.start.kernel_process import OWN_CHANNELS, KernelProcess
from nbrl.sandbox.start.zygote import Zygote
from nbrl.sandbox.walls.interpreter import compile_once, for_kernels

__all__ = ["CallHandler", "KernelPool"]


class _CleanKernel:
    """A kernel that has run only the prelude, with its tool channel already served."""

    def __init__(self, kernel: SandboxKernel, serving: asyncio.Task[None]) -> None:
        self.kernel = kernel
        self._serving = serving

    async def close(self) -> None:
        self._serving.cancel()
        await asyncio.gather(self._serving, return_exceptions=True)
        await self.kernel.close()


class KernelPool:
    """An async context manager that owns every kernel it started and ends all of them at its exit.

    `prelude` is trusted code that has run in each kernel before it is given to a trajectory; in the zygote it runs only once. It
    may define anything, but has no tools yet: `host_call` answers only once the kernel is in use.
    """

    def __init__(self, settings: SandboxSettings, *, prelude: str = "") -> None:
        self._settings = KernelLimits.of(settings)
        self._prelude = prelude
        self._live = asyncio.Semaphore(settings.max_live)
        self._warm: list[asyncio.Task[_CleanKernel]] = []
        self._closing: set[asyncio.Task[None]] = set()
        self._out: set[_CleanKernel] = set()
        self._zygote: Zygote | None = None
        self._zygote_lock = asyncio.Lock()

    async def __aenter__(self) -> Self:
        descriptors.allow(self._settings)
        await asyncio.to_thread(lambda: compile_once(for_kernels(self._settings)))
        self._refill()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            for task in self._warm:
                task.cancel()
            for warm in await asyncio.gather(*self._warm, return_exceptions=True):
                if isinstance(warm, _CleanKernel):
                    self._discard(warm)
            self._warm.clear()
            for clean in list(self._out):
                self._discard(clean)
            await self.settle()
        finally:
            # Even if this wait was cancelled: all kernels of a zygote end with it.
            if self._zygote is not None:
                await self._zygote.end()

    @asynccontextmanager
    async def kernel(self, tools: Mapping[str, CallHandler] | None = None) -> AsyncIterator[SandboxKernel]:
        """Yield a clean kernel for one trajectory, which may call `tools` and nothing else; it is killed at the end."""
        clean = await self._take()
        clean.kernel.host_calls.tools = tools or {}
        self._out.add(clean)
        try:
            yield clean.kernel
        finally:
            if clean in self._out:
                self._discard(clean)

    async def settle(self) -> None:
        """Wait until every returned kernel has ended."""
        await asyncio.gather(*self._closing, return_exceptions=True)

    async def _take(self) -> _CleanKernel:
        """Take the warm kernel that is ready first. Dead ones are skipped, and so are those whose start failed earlier, because
        the cause may be gone by now."""
        while True:
            self._refill(at_least=1)
            chosen = next((task for task in self._warm if task.done()), self._warm[0])
            self._warm.remove(chosen)
            if chosen.done() and chosen.exception() is not None:
                continue
            self._refill()
            try:
                clean = await asyncio.shield(chosen)
            except asyncio.CancelledError:
                # The caller was cancelled; the kernel is still clean.
                self._warm.insert(0, chosen)
                raise
            if clean.kernel.alive:
                return clean
            self._discard(clean)

    def _refill(self, at_least: int = 0) -> None:
        while len(self._warm) < max(self._settings.warm, at_least):
            self._warm.append(asyncio.create_task(self._make()))

    async def _make(self) -> _CleanKernel:
        await self._live.acquire()
        try:
            return await self._start()
        except BaseException:
            self._live.release()
            raise

    async def _start(self) -> _CleanKernel:
        process = await self._birth()
        host_calls = HostCalls(self._settings)
        kernel = SandboxKernel(process, host_calls, self._settings)
        clean = _CleanKernel(kernel, asyncio.create_task(host_calls.serve(process.channel)))
        try:
            await kernel.ready()
            # A zygote's kernels have already run it, and other cells, before the fork.
            if self._settings.provisioner == "bubblewrap":
                execution = await kernel.execute(self._prelude, timeout=self._settings.start_timeout_s, silent=True)
                if execution.status != "ok":
                    text = "\n".join(output.text for output in execution.outputs)
                    raise SandboxError(f"the prelude failed in a new kernel ({execution.status}): {text}")
        except BaseException as error:
            await asyncio.shield(clean.close())
            if isinstance(error, TimeoutError):
                raise SandboxError("a kernel came up but did not answer: is the machine overloaded?") from None
            raise
        return clean

    async def _birth(self) -> KernelProcess:
        if self._settings.provisioner == "bubblewrap":
            return await fresh.start_kernel(self._settings)
        zygote = await self._living_zygote()
        try:
            return await zygote.fork(OWN_CHANNELS)
        except SandboxError:
            if zygote.alive:
                raise
            return await (await self._living_zygote()).fork(OWN_CHANNELS)

    async def _living_zygote(self) -> Zygote:
        async with self._zygote_lock:
            if self._zygote is not None and not self._zygote.alive:
                await self._zygote.end()
                self._zygote = None
            if self._zygote is None:
                self._zygote = await Zygote.start(self._settings, self._prelude)
            return self._zygote

    def _discard(self, clean: _CleanKernel) -> None:
        """End a kernel in the background; its slot is free once it has ended."""
        self._out.discard(clean)

        async def close() -> None:
            try:
                await clean.close()
            finally:
                self._live.release()

        task = asyncio.create_task(close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


async def one_kernel(settings: SandboxSettings) -> None:
    """Start a kernel, run a cell and end it. Raises SandboxError if that fails on this machine."""
    async with KernelPool(settings.model_copy(update={"warm": 0})) as pool, pool.kernel() as kernel:
        execution = await kernel.execute("print(6 * 7)")
        if execution.status != "ok" or [output.text for output in execution.outputs] != ["42\n"]:
            raise SandboxError(f"a kernel started but answered {execution.status} to print(6 * 7)")
