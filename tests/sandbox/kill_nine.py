"""Script: kill a process that holds sandboxes with -9 after each of the given delays, and say what is left 5 seconds later.

`kill_nine PROVISIONER DELAY…` prints how many processes survived each kill. It is a child subreaper, so whatever loses its parent
becomes its child: no process can hide.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time

HOLDER = """
import asyncio, sys
from sandbox.pool import KernelPool
from sandbox.settings import SandboxSettings

async def main():
    settings = SandboxSettings(provisioner=sys.argv[1], warm=2, max_live=4)
    daemon = "import os, time\\nif os.fork() == 0:\\n    os.setsid()\\n    time.sleep(1000)"
    async with KernelPool(settings) as pool:
        while True:
            async with pool.kernel() as kernel:
                await kernel.execute(daemon)

asyncio.run(main())
"""


def survivors(patience: float) -> int:
    """How many children are left when the patience ends; 0 as soon as there are none."""
    deadline = time.monotonic() + patience
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return 0
        if time.monotonic() > deadline:
            with open(f"/proc/self/task/{os.getpid()}/children") as children:
                return len(children.read().split())
        time.sleep(0.02)


def main() -> None:
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
    for delay in sys.argv[2:]:
        holder = subprocess.Popen([sys.executable, "-c", HOLDER, sys.argv[1]])
        time.sleep(float(delay))
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait()
        print(survivors(5.0), flush=True)


if __name__ == "__main__":
    main()
