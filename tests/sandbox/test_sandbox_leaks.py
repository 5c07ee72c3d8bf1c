"""Nothing of a sandbox stays, whoever is killed and whenever: no process, socket folder, control group or mount."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nbrl.sandbox.errors import KernelLostError
from nbrl.sandbox.pool import KernelPool
from nbrl.sandbox.walls import cgroups
from nbrl.sandbox.walls.launcher import group_names
from tests.sandbox.sandbox_lab import Lab

_SCRIPT = Path(__file__).parent / "kill_nine.py"


def killed(provisioner: str, victims: str, number: int, seed: int, count: int, folder: Path) -> list[dict[str, object]]:
    """What is left of each of `count` holders that got the signal `number`, alone or with what is below them."""
    environment = {**os.environ, "TMPDIR": str(folder), "PYTHONPATH": ":".join([str(_SCRIPT.parents[2]), *sys.path])}
    command = [sys.executable, str(_SCRIPT), provisioner, victims, *map(str, (number, seed, count))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=20 + 20 * count, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(("number", "count"), [pytest.param(signal.SIGKILL, 10, marks=pytest.mark.more), (signal.SIGTERM, 1)])
def test_nothing_is_left_when_the_host_is_killed_at_any_moment(lab: Lab, number: int, count: int, tmp_path: Path) -> None:
    found = killed(lab.provisioner, "host", number, 1, count, tmp_path)
    assert len(found) == count
    assert [one for one in found if one["left"]] == []


@pytest.mark.parametrize(
    ("victims", "number"), [("children", signal.SIGKILL), pytest.param("tree", signal.SIGTERM, marks=pytest.mark.more)]
)
def test_nothing_is_left_when_the_host_does_not_die_alone(lab: Lab, victims: str, number: int, tmp_path: Path) -> None:
    # Ray's workers kill their children when they end; who ends a run sends its whole tree a signal.
    found = killed(lab.provisioner, victims, number, 1, 1, tmp_path)
    assert [one["left"] for one in found] == [{}]


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_nothing_is_left_after_a_hundred_kills(lab: Lab, tmp_path: Path) -> None:
    found = killed(lab.provisioner, "host", signal.SIGKILL, 2, 100, tmp_path)
    assert len(found) == 100
    assert [one for one in found if one["left"]] == []


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def line(child: int) -> dict[str, int]:
    """The processes of a sandbox from the top: our child, the launcher, bubblewrap, what runs inside."""
    (launcher,) = children(child)
    (bubblewrap,) = children(launcher)
    (inside,) = children(bubblewrap)
    return {"child": child, "launcher": launcher, "bubblewrap": bubblewrap, "inside": inside}


def groups(name: str) -> list[str]:
    """The control groups of the launcher `name` that exist."""
    plan = cgroups.plan(name)
    return [group for group in group_names(plan.parents, plan.cpu) if os.path.isdir(group)]


@pytest.mark.parametrize(
    ("victim", "number"),
    [
        ("launcher", signal.SIGKILL),
        ("inside", signal.SIGKILL),
        *(pytest.param(victim, signal.SIGKILL, marks=pytest.mark.more) for victim in ("child", "bubblewrap")),
        *(
            pytest.param(victim, signal.SIGTERM, marks=pytest.mark.more)
            for victim in ("child", "launcher", "bubblewrap", "inside")
        ),
    ],
)
def test_the_pool_goes_on_when_a_part_of_a_sandbox_is_killed(
    lab: Lab, victim: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The first process of a namespace does not hear it; the launcher leaves it to those above.
    unheard = number == signal.SIGTERM and victim in ("launcher", "inside")
    if victim == "inside" and unheard:
        number = signal.SIGQUIT
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    async def run() -> None:
        before = {*children(os.getpid())}
        async with KernelPool(lab.settings()) as pool:
            async with pool.kernel() as kernel:
                (child,) = {*children(os.getpid())} - before
                parts = line(child)
                names = os.listdir(tmp_path)
                below = [os.pidfd_open(pid) for pid in (*parts.values(), *children(parts["inside"]))]
                cell = asyncio.ensure_future(kernel.execute("import time; time.sleep(1)"))
                await asyncio.sleep(0.3)
                os.kill(parts[victim], number)
                if not unheard and (lab.provisioner == "zygote" or victim == "child"):
                    with pytest.raises(KernelLostError):
                        await cell
                else:
                    assert (await cell).status == ("ok" if unheard else "dead")
            async with pool.kernel() as kernel:
                assert (await kernel.execute("2 + 2")).outputs[0].text == "4"
        assert os.listdir(tmp_path) == []
        assert [group for name in names for group in groups(name)] == []
        deadline = time.monotonic() + 5
        for pidfd in below:
            while _lives(pidfd):
                assert time.monotonic() < deadline
                await asyncio.sleep(0.02)
            os.close(pidfd)
        assert {*children(os.getpid())} == before

    asyncio.run(run())


def _lives(pidfd: int) -> bool:
    return "Pid:\t-1" not in Path(f"/proc/self/fdinfo/{pidfd}").read_text()
