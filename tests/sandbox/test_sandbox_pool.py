"""The pool: clean kernels, each once, never too many, and nothing left of them however their owner ends."""

import asyncio
import contextlib
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from nbrl.sandbox import doctor
from nbrl.sandbox.errors import KernelLostError, SandboxError, SandboxUnavailable
from nbrl.sandbox.kernel import SandboxKernel
from nbrl.sandbox.pool import KernelPool
from nbrl.sandbox.settings import KernelLimits, SandboxSettings
from tests.hostile.canaries import descendants
from tests.sandbox.sandbox_lab import Lab

pytestmark = pytest.mark.sandbox


def test_no_kernel_is_handed_out_twice(lab: Lab) -> None:
    async def run() -> list[str]:
        said = []
        async with KernelPool(lab.settings(warm=2)) as pool:
            for _ in range(4):
                async with pool.kernel() as kernel:
                    code = "print('x' in globals()); x = 1; open('left', 'w').close(); import os; print(os.listdir())"
                    said.append((await kernel.execute(code)).outputs[0].text)
        return said

    assert asyncio.run(run()) == ["False\n['left']\n"] * 4


@pytest.mark.more
def test_pandas_can_be_imported_ahead() -> None:
    async def run() -> list[str]:
        async with KernelPool(SandboxSettings(provisioner="zygote", preload=("pandas",))) as pool, pool.kernel() as kernel:
            cells = (
                "import sys; print('pandas' in sys.modules)",
                "import pandas; print(pandas.DataFrame({'a': [1, 2]}).a.sum())",
            )
            return [(await kernel.execute(cell)).outputs[0].text for cell in cells]

    assert asyncio.run(run()) == ["True\n", "3\n"]


def test_siblings_share_no_random_state_and_see_nothing_of_each_other(lab: Lab) -> None:
    code = "import random, os, uuid; open('/tmp/mine', 'x').close(); print(random.random(), uuid.uuid4(), os.urandom(4))"
    numpy = "import numpy; print(numpy.random.rand())"

    async def run() -> list[Any]:
        settings = lab.settings(preload=("numpy", "numpy.random"))
        async with KernelPool(settings) as pool, pool.kernel() as first, pool.kernel() as second:
            return [await kernel.execute(cell) for cell in (code, numpy) for kernel in (first, second)]

    first, second, third, fourth = asyncio.run(run())
    assert first.status == second.status == third.status == fourth.status == "ok"
    assert first.outputs[0].text != second.outputs[0].text
    assert third.outputs[0].text != fourth.outputs[0].text


def test_a_dying_kernel_leaves_its_sibling_and_the_pool_alone(lab: Lab) -> None:
    code = "import os\nfor target in (0, 1, -1):\n    try: os.kill(target, 9)\n    except OSError: pass\nos._exit(1)"

    async def run() -> tuple[str, str, str]:
        async with KernelPool(lab.settings()) as pool:
            async with pool.kernel() as first, pool.kernel() as second:
                died = await first.execute(code)
                alive = await second.execute("1 + 1")
            async with pool.kernel() as third:
                return died.status, alive.outputs[0].text, (await third.execute("2 + 2")).outputs[0].text

    assert asyncio.run(run()) == ("dead", "2", "4")


def test_no_more_kernels_live_than_allowed(lab: Lab) -> None:
    async def run() -> int:
        living = most = 0

        async def use(pool: KernelPool) -> None:
            nonlocal living, most
            async with pool.kernel() as kernel:
                living += 1
                most = max(most, living)
                assert (await kernel.execute("7")).outputs[0].text == "7"
                living -= 1

        async with KernelPool(lab.settings(max_live=2)) as pool:
            await asyncio.gather(*(use(pool) for _ in range(6)))
        return most

    assert asyncio.run(run()) <= 2


def test_a_cancelled_cell_costs_its_kernel_only(lab: Lab) -> None:
    async def run() -> tuple[str, str]:
        async with KernelPool(lab.settings()) as pool, pool.kernel() as kernel:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await kernel.execute("while True: pass")
            after = await kernel.execute("1")
            async with pool.kernel() as other:
                return after.status, (await other.execute("2")).outputs[0].text

    assert asyncio.run(run()) == ("dead", "2")


def test_a_broken_prelude_says_so() -> None:
    async def run() -> None:
        async with KernelPool(SandboxSettings(warm=0), prelude="1 / 0") as pool, pool.kernel():
            pass

    with pytest.raises(SandboxError, match=r"(?s)prelude failed.*ZeroDivisionError"):
        asyncio.run(run())


def test_a_pool_whose_end_nobody_waits_for_ends_its_zygote() -> None:
    async def run() -> bool:
        pool = await KernelPool(SandboxSettings(warm=0)).__aenter__()
        async with pool.kernel():
            zygote = pool._zygote
            assert zygote is not None
            ending = asyncio.create_task(pool.__aexit__(None, None, None))
            await asyncio.sleep(0)
            ending.cancel()
            await asyncio.gather(ending, return_exceptions=True)
        return zygote._bubblewrap.running

    assert not asyncio.run(run())


def test_a_killed_zygote_is_replaced_and_its_kernels_are_lost_not_dead_of_their_cells() -> None:
    async def run() -> str:
        async with KernelPool(SandboxSettings(warm=0)) as pool:
            async with pool.kernel() as busy, pool.kernel() as idle:
                zygote = pool._zygote
                assert zygote is not None
                cell = asyncio.create_task(busy.execute("import time; time.sleep(20)"))
                await asyncio.sleep(0.2)
                os.kill(zygote._bubblewrap._process.pid, signal.SIGKILL)
                for work in (cell, idle.execute("1")):
                    with pytest.raises(KernelLostError, match="ended from outside"):
                        await work
            async with pool.kernel() as kernel:
                return (await kernel.execute("2 + 2")).outputs[0].text

    assert asyncio.run(run()) == "4"


def kill_launchers() -> None:
    for pid in descendants():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if b"launcher.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
                os.kill(pid, signal.SIGKILL)


def test_a_kernel_whose_launcher_was_killed_is_lost(lab: Lab) -> None:
    async def body(kernel: SandboxKernel) -> None:
        cell = asyncio.create_task(kernel.execute("import time; time.sleep(20)"))
        await asyncio.sleep(0.2)
        kill_launchers()
        with pytest.raises(KernelLostError):
            await cell

    lab.with_kernel(body)


def test_without_bubblewrap_the_error_says_what_to_install(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(SandboxUnavailable, match="install"):
        lab.cells("1")


@pytest.mark.more
def test_a_warm_kernel_that_failed_unasked_is_made_anew(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> str:
        with monkeypatch.context() as patch:
            patch.setenv("PATH", "/nonexistent")
            pool = KernelPool(lab.settings(warm=2))
            async with pool:
                await asyncio.wait(pool._warm)
                assert all(task.exception() for task in pool._warm)
                patch.undo()
                async with pool.kernel() as kernel:
                    return (await kernel.execute("6 * 7")).outputs[0].text

    assert asyncio.run(run()) == "42"


@pytest.mark.more
def test_a_folder_too_deep_for_sockets_says_so(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with pytest.raises(SandboxError, match="set TMPDIR to a short path"):
        lab.cells("1")


def test_settings_refuse_typos_and_contradictions() -> None:
    with pytest.raises(ValidationError, match="image_bytes does not fit into a message"):
        KernelLimits(image_bytes=4_000_000)
    with pytest.raises(ValidationError):
        SandboxSettings(memori_mb=1)  # type: ignore[call-arg]
    with pytest.raises(ValidationError, match="max_live"):
        SandboxSettings(warm=9, max_live=8)


def test_the_doctor_finds_this_machine_well_and_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [name for name, works, _ in doctor.checks(SandboxSettings()) if not works] == []
    monkeypatch.setenv("PATH", "/nonexistent")
    found = doctor.checks(SandboxSettings())
    assert not any(works for _, works, _ in found)
    assert all("install the package" in said for _, _, said in found)


@pytest.mark.more
def test_the_doctor_advises_no_way_that_does_not_work_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    said = {name: found for name, _, found in doctor.checks(SandboxSettings())}
    assert "set TMPDIR to a short path" in said["zygote kernel"]
    assert "provisioner" not in said["zygote kernel"]


def test_nothing_is_left_after_the_pool(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        lab.cells("import os\nif os.fork() == 0:\n    os.setsid()\n    import time; time.sleep(1000)")
    assert os.listdir(tmp_path) == []
    with open(f"/proc/self/task/{os.getpid()}/children") as children:
        names = [Path(f"/proc/{pid}/cmdline").read_text() for pid in children.read().split()]
    assert not [name for name in names if "launcher.py" in name or "bwrap" in name]
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 2


def test_an_end_that_nobody_waits_for_goes_on(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    async def run() -> None:
        async with KernelPool(lab.settings()) as pool, pool.kernel() as kernel:
            process = kernel._process
            ending = asyncio.create_task(process.end())
            await asyncio.sleep(0)
            ending.cancel()
            await asyncio.gather(ending, return_exceptions=True)
            await process.end()
            if lab.provisioner == "bubblewrap":
                assert os.listdir(tmp_path) == []

    asyncio.run(run())
    assert os.listdir(tmp_path) == []
