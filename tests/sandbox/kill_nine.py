"""Script: kill a process that holds sandboxes, and say what is left of it 5 seconds later.

`kill_nine PROVISIONER VICTIMS SIGNAL SEED COUNT`: COUNT times, at a moment that the seed chooses, the `host` gets the signal; for
each a line of JSON says what is left: processes, control groups, mounts, socket folders. With VICTIMS `children` the host's
children get it first, with `tree` all that is below it, too, in the middle of a cell. This process is a child subreaper, so
whatever loses its parent becomes its child; it lives in control groups of its own, so that what a holder makes lies in them;
folders lie in TMPDIR.
"""

import contextlib
import ctypes
import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from nbrl.sandbox.walls import cgroups
from tests.hostile.canaries import descendants, mounts

# A line for each stage: imported, the pool entered, then again and again a kernel handed out, a cell running, a cell done.
HOLDER = """
import asyncio, sys
from nbrl.sandbox.pool import KernelPool
from nbrl.sandbox.settings import SandboxSettings

async def main():
    settings = SandboxSettings(provisioner=sys.argv[1], warm=int(sys.argv[2]), max_live=4)
    daemon = f"import os, time\\nif os.fork() == 0:\\n    os.setsid()\\n    time.sleep(1000)\\ntime.sleep({sys.argv[3]})"
    print("imported", flush=True)
    async with KernelPool(settings) as pool:
        print("entered", flush=True)
        while True:
            async with pool.kernel() as kernel:
                print("kernel", flush=True)
                cell = asyncio.ensure_future(kernel.execute(daemon))
                await asyncio.sleep(0)
                print("cell", flush=True)
                await cell
                print("done", flush=True)

asyncio.run(main())
"""


@contextlib.contextmanager
def own_groups() -> Iterator[list[Path]]:
    """Live in control groups of our own: yields the folders below which a holder's groups are made, none where we may not."""
    name = f"kill-nine-{os.getpid()}"
    plan = cgroups.plan(name)
    tops = [top for top in (*plan.parents, plan.cpu) if top is not None and _joined(top)]
    try:
        yield tops
    finally:
        for top in tops:
            (top.parent / "cgroup.procs").write_text(str(os.getpid()))
            cgroups.remove_groups([str(top / "home"), str(top)])


def _joined(top: Path) -> bool:
    # One deeper than the top, for in version 2 groups are made beside the one that holds us.
    try:
        (top / "home").mkdir(parents=True)
        (top / "home/cgroup.procs").write_text(str(os.getpid()))
    except OSError:
        cgroups.remove_groups([str(top)])
        return False
    return True


def leftovers(tops: list[Path], mounted: list[str]) -> dict[str, list[str]]:
    """What is there that was not before, by kind."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    found = {
        "processes": [f"{pid} {Path(f'/proc/{pid}/cmdline').read_text()[:200]}" for pid in _children(os.getpid())],
        "groups": [place for top in tops for place, _, _ in os.walk(top) if "/nbrl-" in place],
        "mounts": sorted({*mounts(os.environ["TMPDIR"])} - {*mounted}),
        # Only these: Python's tempfile tries a folder out with a file that a kill may leave.
        "folders": [str(folder) for folder in Path(os.environ["TMPDIR"]).glob("nbrl-*")],
    }
    return {kind: things for kind, things in found.items() if things}


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def moment(dice: random.Random) -> tuple[int, float]:
    """How many lines of the holder to wait for, and how many seconds more."""
    lines = dice.choice((0, 1, 1, 2, 2, 2, 3, 4, 5, dice.randint(6, 20)))
    return lines, dice.uniform(0.0, 0.6 if lines in (0, 2) else 0.1)


def kill(provisioner: str, victims: str, number: int, lines: int, delay: float) -> None:
    """Start a holder and kill it at that moment."""
    # A sandbox that is just being started cannot stand the end of its own part on the host together with the host's.
    warm, seconds = ("2", "0.05") if victims == "host" else ("0", "1000")
    with subprocess.Popen([sys.executable, "-c", HOLDER, provisioner, warm, seconds], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        for _ in range(lines):
            holder.stdout.readline()
        time.sleep(delay)
        below = {"host": [], "children": _children(holder.pid), "tree": list(descendants())}[victims]
        for pid in below:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        holder.send_signal(number)


def main() -> None:
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
    provisioner, victims = sys.argv[1:3]
    number, seed, count = map(int, sys.argv[3:])
    dice = random.Random(f"{provisioner} {seed}")
    with own_groups() as tops:
        for _ in range(count):
            mounted = mounts(os.environ["TMPDIR"])
            lines, delay = moment(dice) if victims == "host" else (4, dice.uniform(0.0, 0.1))
            kill(provisioner, victims, number, lines, delay)
            deadline = time.monotonic() + 5
            while (left := leftovers(tops, mounted)) and time.monotonic() < deadline:
                time.sleep(0.02)
            print(json.dumps({"lines": lines, "delay": round(delay, 3), "left": left, "groups": len(tops)}), flush=True)


if __name__ == "__main__":
    main()
