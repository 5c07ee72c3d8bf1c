"""Bombs: take all processes, threads, memory, files"""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nbrl.sandbox.walls.cgroups import hierarchies
from tests.hostile.arena import Arena, Kernel
from tests.hostile.cells import MIB

pytestmark = pytest.mark.timeout(600)


@pytest.mark.attack(
    tried="A fork bomb: children that fork children, for ever",
    wall="RLIMIT_NPROC in a user namespace of the kernel's own, a pids control group where there is one",
    effect="at most `max_processes` live, whatever they do; all end with the kernel",
)
def test_a_fork_bomb_is_bounded(arena: Arena, victim: Kernel) -> None:
    code = """
if os.fork() == 0:
    while True:
        try: os.fork()
        except OSError: pass
time.sleep(0.5)
print("done")
"""
    victim.run(code, timeout=100.0)
    assert 2 < len(arena.victims_processes()) <= arena.settings.max_processes + 4


@pytest.mark.attack(
    tried="A thread bomb",
    wall="RLIMIT_NPROC counts threads too",
    effect="an error in the cell; the kernel lives",
)
def test_a_thread_bomb_is_bounded(arena: Arena, victim: Kernel) -> None:
    code = """
import _thread
count, event = 0, threading.Event()
try:
    while True:
        _thread.start_new_thread(event.wait, ())
        count += 1
except RuntimeError:
    event.set()
print(count)
"""
    assert 0 < int(victim.text(code)) < arena.settings.max_processes


@pytest.mark.attack(
    tried="Take all memory in one process: bytearrays, anonymous maps, the stack",
    wall="RLIMIT_DATA and RLIMIT_STACK, a memory control group where there is one; maps that grow are refused",
    effect="MemoryError in the cell, or the kernel ends; the host keeps its memory",
)
def test_one_process_cannot_take_all_memory(arena: Arena, victim: Kernel) -> None:
    code = """
held, size = [], 0
try:
    while size < 4 << 30:
        held.append(bytearray(8 << 20))
        size += 8
except MemoryError:
    pass
print(size)
del held
def deeper(): return deeper()
attempt("recursion", deeper)
attempt("map", mmap.mmap, -1, 2 << 30, mmap.MAP_PRIVATE)
attempt("stack", lambda: (threading.stack_size(8 << 30), threading.Thread(target=print).start()))
attempt("stack limit", resource.setrlimit, resource.RLIMIT_STACK, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
attempt("growing map", mmap.mmap, -1, 2 << 30, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x100)
print(did)
"""
    done = victim.run(code)
    assert done.status == "ok", done
    size, taken = done.outputs[0].text.split()
    assert int(size) <= arena.settings.memory_mb
    assert taken == "[]"


@pytest.mark.attack(
    tried="Take all memory in many processes, shared maps and memfds, which no rlimit counts",
    wall="a memory control group around the kernel as a whole; without one, only the number of processes (see above)",
    effect="with the group: the kernel ends when it is full; in any case all memory comes back with the kernel's end",
)
def test_many_processes_cannot_take_all_memory(arena: Arena, victim: Kernel) -> None:
    code = """
for _ in range(6):
    if os.fork() == 0:
        shared = mmap.mmap(-1, {each})
        for start in range(0, len(shared), 4096):
            shared[start] = 1
        time.sleep(100)
        os._exit(0)
time.sleep(1)
"""
    each = arena.settings.memory_mb * MIB
    victim.run(code.format(each=each), timeout=100.0)
    if "cgroups" not in victim.kernel._process.lacking:
        assert sum(map(_shared_memory, arena.victims_processes())) < 2 * each
    victim.close()
    # Such memory lives as long as whoever has it in his own.
    assert sum(map(_shared_memory, [*arena.processes, *arena.victims_processes()])) < each


@pytest.mark.attack(
    tried="Fill every writable file system, by one file, by many, by sparse files",
    wall="tmpfs of a fixed size each; RLIMIT_FSIZE",
    effect="no more than three times `workspace_mb` is held; the host's disks hold nothing",
)
def test_file_systems_cannot_be_filled_beyond_their_size(arena: Arena, victim: Kernel) -> None:
    code = """
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
written = 0
mounts = [line.split()[4] for line in open("/proc/self/mountinfo") if " rw" in line.split(" - ")[0]]
for top in dict.fromkeys(["/workspace", "/tmp", "/dev/shm", *mounts]):
    for number in range(64):
        try:
            descriptor = os.open(f"{top}/bomb{number}", os.O_WRONLY | os.O_CREAT)
            while True:
                written += os.write(descriptor, bytes(1 << 20))
        except OSError:
            pass
print(written >> 20)
attempt("sparse", os.truncate, "/tmp/bomb0", 1 << 40)
"""
    assert 0 < int(victim.text(code)) <= 3 * arena.settings.workspace_mb


@pytest.mark.attack(
    tried="An inode bomb: empty files, folders, links without number",
    wall="zygote: a number of inodes for each tmpfs; bubblewrap: its tmpfs has none, a memory control group bounds it",
    effect="zygote: at most `workspace_files`; both: what was taken comes back with the kernel's end",
)
def test_inodes_are_bounded(arena: Arena, victim: Kernel) -> None:
    code = """
count, end = 0, time.monotonic() + 1
try:
    while time.monotonic() < end:
        os.mkdir(f"/tmp/{count}")
        count += 1
except OSError:
    pass
print(count)
"""
    done = victim.run(code)
    if arena.provisioner == "bubblewrap" and "cgroups" not in victim.kernel._process.lacking and done.status == "dead":
        return  # its control group has ended it; that the host and the siblings are well is checked after every test
    assert done.status == "ok", done
    made = int(done.outputs[0].text)
    assert made > 0
    if arena.provisioner == "zygote":
        assert made < arena.settings.workspace_files


@pytest.mark.attack(
    tried="Take the processors: spinning processes in sessions of their own, each of which the system would give a share",
    wall="a control group for each kernel's processors where there is that controller; without, a share for each session",
    effect="with the group: a kernel gets no more than each of its siblings and each session of the host",
)
def test_many_sessions_take_no_more_than_one_kernels_share(arena: Arena, victim: Kernel) -> None:
    """Of the time of one processor, for which all of them contend."""
    processor = max(os.sched_getaffinity(0))
    code = f"""
for _ in range(24):
    if os.fork() == 0:
        os.setsid()
        os.sched_setaffinity(0, [{processor}])
        while True: pass
"""
    spin = f"""
import os, time
allowed = os.sched_getaffinity(0)
os.sched_setaffinity(0, [{processor}])
began, end = time.process_time(), time.monotonic() + 2
while time.monotonic() < end: pass
print(time.process_time() - began)
os.sched_setaffinity(0, allowed)
"""
    assert victim.run(code).status == "ok"
    spinning = arena.victims_processes()
    with subprocess.Popen(
        [sys.executable, "-c", spin + "while True: pass"], start_new_session=True, stdout=subprocess.PIPE
    ) as ours:
        before, host = sum(map(_spent, spinning)), _spent(ours.pid)
        sibling = float(arena.sibling.text(spin))
        taken, host = sum(map(_spent, spinning)) - before, _spent(ours.pid) - host
        ours.kill()
    assert min(taken, sibling, host) > 0
    if "cgroups" not in victim.kernel._process.lacking and _processors_are_offered():
        assert min(sibling, host) > taken / 4


def _spent(pid: int) -> float:
    """Time of the processor that a process has taken, in seconds; finer than what /proc tells."""
    return time.clock_gettime(~pid << 3 | 2)


def _processors_are_offered() -> bool:
    """Whether this machine shares out processors by control groups, where it bounds memory by them."""
    found = hierarchies(Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text())
    offered = [(place.top / "cgroup.controllers").read_text().split() for place in found if place.version == 2]
    return any("cpu" in place.controllers for place in found) or any({"cpu", "memory"} <= {*names} for names in offered)


def _shared_memory(pid: int) -> int:
    """Bytes of shared memory that a process has in its own; none if it is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssShmem:")), 0)
