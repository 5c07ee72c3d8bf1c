"""Control groups: a kernel as a whole is bounded, and its groups go with it."""

import asyncio
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbrl.sandbox.errors import SandboxUnavailable
from nbrl.sandbox.jupyter.outputs import Execution
from nbrl.sandbox.kernel import SandboxKernel
from nbrl.sandbox.pool import KernelPool
from nbrl.sandbox.settings import SandboxSettings
from nbrl.sandbox.walls import cgroups
from nbrl.sandbox.walls.protections import pid_of
from tests.sandbox.machines import run_in
from tests.sandbox.sandbox_lab import Lab

REQUIRED = (*SandboxSettings().require, "cgroups")


def groups_work() -> bool:
    plan = cgroups.plan("nbrl-probe")
    try:
        cgroups.Groups.make(plan, SandboxSettings()).remove()
    except OSError:
        return False
    return True


needs_groups = pytest.mark.skipif(not groups_work(), reason="no control group can be made here")


def folders(name: str) -> list[Path]:
    """The groups of the launcher `name` that exist."""
    return [parent for parent in cgroups.plan(name).parents if parent.exists()]


def groups_below(parent: Path) -> list[str]:
    """The members of each."""
    return [(child / "cgroup.procs").read_text() for child in parent.iterdir() if child.is_dir()]


@needs_groups
def test_memory_is_bounded_over_all_processes_of_a_kernel(lab: Lab) -> None:
    # Each process stays below its own limit; together they would take a gigabyte.
    bomb = """
import os
children = []
for _ in range(8):
    child = os.fork()
    if child == 0:
        held = bytearray(100 << 20)
        for page in range(0, len(held), 4096):
            held[page] = 1
        os.kill(os.getpid(), 19)
        os._exit(0)
    children.append(child)
killed = 0
for child in children:
    _, status = os.waitpid(child, os.WUNTRACED)
    killed += os.WIFSIGNALED(status)
print(killed > 0)
"""
    (done,) = lab.cells(bomb, memory_mb=256, workspace_mb=4, require=REQUIRED)
    # The kernel kills the largest process when the group is full; that may be the kernel itself.
    assert done.status == "dead" or done.outputs[0].text == "True\n"


@needs_groups
def test_one_process_meets_its_own_limit_first_and_the_kernel_lives(lab: Lab) -> None:
    code = "held = bytearray(400 << 20)"
    fill = """
for folder in ("/workspace", "/tmp", "/dev/shm"):
    with open(f"{folder}/full", "wb") as file:
        file.write(bytes(15 << 20))
"""
    filled, first, second = lab.cells(fill, code, "2 + 2", memory_mb=256, workspace_mb=16, require=REQUIRED)
    assert filled.status == "ok"
    assert (first.status, first.outputs[0].ename) == ("error", "MemoryError")
    assert second.outputs[0].text == "4"


@pytest.mark.sandbox
@needs_groups
def test_a_group_carries_the_limits_and_holds_its_kernel_only() -> None:
    settings = SandboxSettings(warm=0, max_processes=48, memory_mb=200, workspace_mb=10, require=REQUIRED)

    async def run() -> None:
        async with KernelPool(settings) as pool:
            async with pool.kernel() as first, pool.kernel() as second:
                assert (await first.execute("1")).status == (await second.execute("1")).status == "ok"
                assert pool._zygote is not None
                name = pool._zygote._bubblewrap.folder.name
                for parent in folders(name):
                    kernels = [child for child in parent.iterdir() if child.is_dir()]
                    members = [(kernel / "cgroup.procs").read_text().split() for kernel in kernels]
                    assert [len(pids) for pids in members] == [1, 1]
                    for kernel in kernels:
                        limits = {file.name: file.read_text().strip() for file in kernel.iterdir() if file.name in LIMITS}
                        assert limits
                        assert {LIMITS[file](settings) for file in limits} == {int(value) for value in limits.values()}
            await pool.settle()
            assert [groups_below(parent) for parent in folders(name)] == [["", ""] for _ in folders(name)]
        assert folders(name) == []

    asyncio.run(run())


@pytest.mark.sandbox
@needs_groups
@pytest.mark.skipif(cgroups.plan("nbrl-probe").cpu is None, reason="the processors have no hierarchy of their own here")
def test_kernels_share_the_processors_as_equals() -> None:
    async def run() -> None:
        async with KernelPool(SandboxSettings(warm=0)) as pool:
            async with pool.kernel() as first, pool.kernel() as second:
                assert pool._zygote is not None
                place = cgroups.plan(pool._zygote._bubblewrap.folder.name).cpu
                assert place is not None
                groups = [*place.parent.glob(f"{place.name}.*")]
                members = sorted(int(pid) for group in groups for pid in (group / "cgroup.procs").read_text().split())
                assert members == sorted(pid_of(kernel._process._pidfd) for kernel in (first, second))
                assert len({(group / "cpu.shares").read_text() for group in groups}) == 1
            await pool.settle()
            assert [(group / "cgroup.procs").read_text() for group in groups] == ["", ""]
        assert [*place.parent.glob(f"{place.name}*")] == []

    asyncio.run(run())


@pytest.mark.more
@pytest.mark.sandbox
@needs_groups
def test_a_group_is_left_to_the_next_kernel_unless_what_it_held_is_still_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def groups_of_three_kernels() -> tuple[int, list[str]]:
        async with KernelPool(SandboxSettings(warm=0, require=REQUIRED)) as pool:
            for _ in range(3):
                async with pool.kernel() as kernel:
                    done = await kernel.execute("print(open('/dev/shm/full', 'wb').write(bytes(60 << 20)))")
                    assert done.outputs[0].text == f"{60 << 20}\n"
                await pool.settle()
            assert pool._zygote is not None
            parents = folders(pool._zygote._bubblewrap.folder.name)
            groups = {child.name for parent in parents for child in parent.iterdir() if child.is_dir()}
            return len(groups), [members for parent in parents for members in groups_below(parent)]

    number, members = asyncio.run(groups_of_three_kernels())
    assert number <= 1
    assert {*members} <= {""}
    monkeypatch.setattr(cgroups, "_LEFT", -1)
    assert asyncio.run(groups_of_three_kernels()) == (0, [])


@needs_groups
def test_where_the_processors_cannot_be_shared_out_all_else_is_bounded(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = cgroups.plan
    monkeypatch.setattr("nbrl.sandbox.walls.cgroups.plan", lambda name: plan(name)._replace(cpu=Path("/proc/none", name)))
    assert lab.value("print(6 * 7)", require=REQUIRED) == "42\n"


@pytest.mark.process
@needs_groups
def test_a_kernel_that_cannot_be_moved_there_is_admitted_all_the_same(tmp_path: Path) -> None:
    plan = cgroups.plan("nbrl-elsewhere")
    groups = cgroups.Groups.make(plan._replace(cpu=tmp_path / "cpu"), SandboxSettings())
    process = subprocess.Popen(["sleep", "100"])
    try:
        group = groups.admit(process.pid, "0")
        assert group.holds(process.pid)
        assert list(tmp_path.iterdir()) == []
    finally:
        process.kill()
        process.wait()
        groups.remove()


@pytest.mark.parametrize(
    ("offered", "given", "written"),
    [
        ("cpu io memory pids", "", "+memory +pids +cpu"),
        ("cpu memory pids", "memory pids", "+cpu"),
        ("memory pids", "memory pids", ""),
        ("cpu memory pids", "cpu memory pids", ""),
    ],
)
def test_the_processors_are_shared_out_where_they_are_offered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offered: str, given: str, written: str
) -> None:
    (tmp_path / "cgroup.controllers").write_text(offered)
    (tmp_path / "cgroup.subtree_control").write_text(given)
    said: list[object] = []
    monkeypatch.setattr(cgroups, "_write", lambda file, value: said.append(value))
    cgroups._enable(tmp_path)
    assert " ".join(map(str, said)) == written


def test_only_memory_and_processes_must_be_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids")
    (tmp_path / "cgroup.subtree_control").write_text("memory pids")

    def refuse(file: Path, value: object) -> None:
        raise OSError(value)

    monkeypatch.setattr(cgroups, "_write", refuse)
    cgroups._enable(tmp_path)
    (tmp_path / "cgroup.subtree_control").write_text("cpu")
    with pytest.raises(OSError, match="memory"):
        cgroups._enable(tmp_path)


@pytest.mark.parametrize("together", [("cpu", "memory"), ("cpu", "pids"), ("cpu", "cpuacct"), ()])
def test_controllers_that_come_together_need_one_group(monkeypatch: pytest.MonkeyPatch, together: tuple[str, ...]) -> None:
    sets = [{*together}, *({name} for name in ("cpu", "memory", "pids") if name not in together)]
    places = [cgroups.Hierarchy(1, frozenset(names), Path("/" + min(names)), Path("/" + min(names))) for names in sets if names]
    monkeypatch.setattr(cgroups, "hierarchies", lambda *_: places)
    plan = cgroups.plan("x")
    groups = [*plan.parents, *([plan.cpu] if plan.cpu else [])]
    assert len({*groups}) == len(groups) == (2 if {*together} & {"memory", "pids"} else 3)


LIMITS = {
    "pids.max": lambda settings: settings.max_processes,
    "memory.limit_in_bytes": cgroups.memory_limit,
    "memory.memsw.limit_in_bytes": cgroups.memory_limit,
    "memory.max": cgroups.memory_limit,
    "memory.swap.max": lambda _: 0,
}


def test_where_no_group_can_be_made_kernels_run_without(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nbrl.sandbox.walls.cgroups.plan", lambda name: cgroups.CgroupPlan(2, ()))

    async def body(kernel: SandboxKernel) -> tuple[Execution, list[str]]:
        return await kernel.execute("2 + 2"), list(kernel._process.lacking)

    done, lacking = lab.with_kernel(body)
    assert done.outputs[0].text == "4"
    assert lacking == ["cgroups"]
    with pytest.raises(SandboxUnavailable, match=r"cgroups.*delegated.*or take cgroups out of sandbox\.require"):
        lab.cells("1", require=REQUIRED)


@pytest.mark.parametrize("way", ["user", pytest.param("hidden", marks=pytest.mark.more)])
def test_a_machine_without_groups(way: str, lab: Lab) -> None:
    script = f"""
import asyncio
from nbrl.sandbox import doctor
from nbrl.sandbox.errors import SandboxUnavailable
from nbrl.sandbox.pool import one_kernel
from nbrl.sandbox.settings import SandboxSettings
settings = SandboxSettings(provisioner={lab.provisioner!r}, warm=0)
strict = settings.model_copy(update={{"require": (*settings.require, "cgroups")}})
asyncio.run(one_kernel(settings))
try:
    asyncio.run(one_kernel(strict))
except SandboxUnavailable as error:
    print("refused:", error)
for found in (settings, strict):
    print([check for check in doctor._protections(found) if check[0] == "cgroups"])
"""
    refused, weaker, missing = run_in(way, script).splitlines()
    assert refused.startswith("refused: a kernel would run without cgroups")
    assert "True" in weaker
    assert "weaker here, and allowed: memory is bounded for each process only" in weaker
    assert "False" in missing
    assert "required and missing" in missing


MOUNTS = """\
25 30 0:23 / /sys rw,nosuid - sysfs sysfs rw
31 25 0:26 {root} /sys/fs/cgroup/memory rw,nosuid shared:9 - cgroup cgroup rw,memory
32 25 0:27 / /sys/fs/cgroup/cpu,pids rw,nosuid - cgroup cgroup rw,cpu,pids
33 25 0:28 / /sys/fs/cgroup/unified rw,nosuid - cgroup2 cgroup2 rw,nsdelegate
"""
segments = st.text("abc.-@:", min_size=1, max_size=6).filter(lambda name: name not in (".", ".."))


@given(st.lists(segments, max_size=3), st.lists(segments, max_size=3))
def test_our_own_group_is_found_below_what_is_mounted(root: list[str], below: list[str]) -> None:
    path = "/" + "/".join([*root, *below])
    membership = f"4:memory:{path}\n3:cpu,pids:/\n1:name=systemd:/\n0::{path}\n"
    first, second, third = cgroups.hierarchies(MOUNTS.format(root="/" + "/".join(root)), membership)
    assert (first.version, first.controllers) == (1, {"memory"})
    assert first.own == Path("/sys/fs/cgroup/memory", *below)
    assert (second.controllers, second.own) == ({"cpu", "pids"}, second.top)
    assert (third.version, third.own) == (2, Path("/sys/fs/cgroup/unified", *root, *below))


def test_a_hierarchy_that_hides_our_own_group_is_not_used() -> None:
    found = cgroups.hierarchies(MOUNTS.format(root="/elsewhere"), "4:memory:/here\n3:cpu,pids:/\n0::/../beside\n")
    assert [sorted(hierarchy.controllers) for hierarchy in found] == [["cpu", "pids"]]
