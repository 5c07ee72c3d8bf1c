"""Where hostile cells run: one pool for all of them, a sibling with secrets beside each, and a check of everything after each."""

import ast
import asyncio
import os
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Literal, TypeVar

from nbrl.sandbox.jupyter.outputs import Execution
from nbrl.sandbox.pool import KernelPool
from nbrl.sandbox.settings import KernelLimits
from tests.hostile.canaries import Canaries, Process, descendants, host_state, unwell
from tests.hostile.cells import MIB, PRELUDE, SIBLING, TOOLS

T = TypeVar("T")


class Kernel:
    """A kernel and all that it said."""

    def __init__(self, arena: "Arena") -> None:
        self._arena = arena
        self._stack = AsyncExitStack()
        self.closed = False
        self.said: list[str] = []

    async def open(self, pool: KernelPool) -> None:
        self.kernel = await self._stack.enter_async_context(pool.kernel(TOOLS))

    def run(self, code: str, *, timeout: float = 60.0, expressions: dict[str, str] | None = None) -> Execution:
        done = self._arena.wait(self.kernel.execute(code, timeout=timeout, expressions=expressions))
        self.said.append(repr(done))
        return done

    def text(self, code: str, *, timeout: float = 60.0) -> str:
        """All that the cell showed; it must have run to its end."""
        done = self.run(code, timeout=timeout)
        assert done.status == "ok", done
        return "".join(output.text for output in done.outputs)

    def refused(self, code: str) -> int:
        """How many attempts of the cell were refused; that it made some, and none that succeeded, is asserted."""
        said = self.text(code + "\nprint(len(refusals), did[:20])")
        count, done = said.splitlines()[-1].split(maxsplit=1)
        assert done == "[]", done
        assert int(count) > 0
        return int(count)

    def close(self) -> None:
        """End it and wait until it is gone; may be called twice."""
        self.closed = True
        self._arena.wait(self._stack.aclose())
        self._arena.settle()


class Arena:
    """One pool and one sibling for all tests of a provisioner: what a cell breaks for others, the next check finds."""

    def __init__(self, provisioner: Literal["zygote", "bubblewrap"]) -> None:
        self.provisioner = provisioner
        self.settings = KernelLimits(
            provisioner=provisioner, warm=0, max_live=4, memory_mb=256, max_processes=48, max_open_files=128,
            workspace_mb=8, workspace_files=256, file_mb=4, output_bytes=16384, message_bytes=MIB, interrupt_grace_s=0.5,
            image_bytes=MIB // 2, calls_per_s=1e6, unprivileged_uid=_own_uid(),
        )  # fmt: skip
        # What other tests still run is no business of ours.
        self._others = frozenset(descendants())
        self.canaries = Canaries(self.settings.unprivileged_uid)
        # Names of sockets must fit in 108 bytes.
        self.temporary = Path(tempfile.mkdtemp(prefix="nbrl-arena-"))
        self._outer, tempfile.tempdir = tempfile.tempdir, str(self.temporary)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._pool = KernelPool(self.settings, prelude=PRELUDE)
        self.wait(self._pool.__aenter__())
        self.sibling = self.born()
        names = ("memory", "environment", "workspace")
        hidden = {name: f"nbrl-canary-sibling{name}-{secrets.token_hex(16)}" for name in names}
        assert self.sibling.run(SIBLING.format(**hidden)).status == "ok"
        self._expected = [*hidden.values(), hidden["workspace"], hidden["workspace"], ["canary"], [1], "/workspace"]
        key = self.sibling.kernel._process.address.key.decode()
        self.secrets = [*hidden.values(), *self.canaries.secrets.values(), key]
        self.processes: dict[int, Process] = self._descendants()
        self._host, self._files = host_state(self.temporary), self._listing()
        self._victim = self.born()
        self._descriptors = 0
        self._memory = 0

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(120)

    def loop_seconds(self) -> float:
        """Time of the processor that the event loop of all kernels has taken, in whatever it did."""
        assert self._thread.ident
        return time.clock_gettime(time.pthread_getcpuclockid(self._thread.ident))

    def settle(self) -> None:
        """Wait until every kernel that was given back is gone."""
        self.wait(self._pool.settle())

    def born(self) -> Kernel:
        """One more kernel; who asks closes it."""
        kernel = Kernel(self)
        self.wait(kernel.open(self._pool))
        return kernel

    def _descendants(self) -> dict[int, Process]:
        return descendants(self._others)

    def _listing(self) -> list[str]:
        return sorted(str(path) for path in self.temporary.rglob("*"))

    def victim(self) -> Kernel:
        """A clean kernel; from now on this process's memory is watched."""
        if self._victim.closed:
            # The last check failed half-way.
            self._victim = self.born()
        self._descriptors = len(os.listdir("/proc/self/fd"))
        Path("/proc/self/clear_refs").write_text("5")
        self._memory = _status("VmRSS")
        return self._victim

    def victims_processes(self) -> list[int]:
        """The host's numbers of the processes that the victim has now, its launchers included."""
        return [pid for pid in self._descendants() if pid not in self.processes]

    def peak(self) -> int:
        """Bytes by which this process outgrew what it had before the test, at the worst moment."""
        return _status("VmHWM") - self._memory

    def check(self) -> None:
        """End the victim; nothing may be left of it, and nobody else may have noticed anything but load."""
        self._victim.close()
        heard = "".join(self._victim.said)
        assert not [secret for secret in self.secrets if secret in heard]
        deadline = time.monotonic() + 20
        while self._descendants() != self.processes and time.monotonic() < deadline:
            time.sleep(0.02)
        # Who lived, the zygote and the sibling too, lives with the same rights and limits; no other process is left.
        assert self._descendants() == self.processes
        assert unwell(list(self.processes)) == []
        assert self.peak() < 96 * MIB
        self.canaries.check()
        assert host_state(self.temporary) == self._host
        assert self._listing() == self._files
        done = self.sibling.run("", expressions={"state": "check()"})
        assert done.status == "ok", done
        answer = done.expressions["state"]["data"]["text/plain"]
        assert ast.literal_eval(answer) == self._expected
        assert self.sibling.kernel.host_calls.calls == 0
        self._victim = self.born()
        first = self._victim.run("import os; print(os.listdir(), {*os.listdir('/tmp')} - {'.ipython'}, 6 * 7)")
        assert [output.text for output in first.outputs] == ["[] set() 42\n"], first
        assert len(os.listdir("/proc/self/fd")) <= self._descriptors

    def close(self) -> None:
        self._victim.close()
        self.sibling.close()
        self.wait(self._pool.__aexit__(None, None, None))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        tempfile.tempdir = self._outer
        self.canaries.close()
        left = self._listing()
        shutil.rmtree(self.temporary)
        assert left == []
        assert self._descendants() == {}


def _own_uid() -> int:
    """A uid for kernels that no other process here has, as the system counts pipes, signals and more by user."""
    return 20_000 + os.getpid() % 40_000


def _status(name: str) -> int:
    """A memory figure of this process, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))
