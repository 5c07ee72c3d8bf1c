"""Processes: signal, stop, trace or outlive; loops that do not end"""

import os

import pytest

from tests.hostile.arena import Arena, Kernel

pytestmark = pytest.mark.timeout(600)


@pytest.mark.attack(
    tried="kill(-1), kill(0), killpg and SIGKILL or SIGSTOP to every number, those of the host's processes included",
    wall="own pid namespace and session",
    effect="only the kernel's own processes get it; sibling, zygote and host run on",
)
def test_signals_reach_nobody_else(arena: Arena, victim: Kernel) -> None:
    code = """
numbers = {{*range(2, 300), *{pids}}} - {{int(name) for name in os.listdir("/proc/self/task")}}
for number in (signal.SIGSTOP, signal.SIGKILL):
    for pid in numbers:
        attempt(f"kill-{{pid}}", os.kill, pid, number)
        attempt(f"group-{{pid}}", os.killpg, pid, number)
    attempt("all", os.kill, -1, number)
"""
    pids = [*arena.processes, os.getpid(), os.getppid()]
    victim.refused(code.format(pids=pids))
    assert victim.text("child = subprocess.Popen(['sleep', '9'])\nos.kill(-1, signal.SIGKILL)\nprint(child.wait())") == "-9\n"
    victim.run(
        "for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGKILL):\n    os.kill(0, number)\nos.kill(1, 9)", timeout=0.5
    )


@pytest.mark.attack(
    tried="Stop the kernel itself (SIGSTOP, a vfork that never ends), so that it hangs for ever",
    wall="the first process of a namespace cannot be stopped from inside; what hangs is killed by pidfd",
    effect="the cell ends within its time and grace",
)
def test_a_kernel_cannot_be_made_to_hang(victim: Kernel) -> None:
    assert victim.text("os.kill(os.getpid(), signal.SIGSTOP); signal.raise_signal(signal.SIGTSTP); print(7)") == "7\n"
    hang = "pid = libc.vfork()\nif pid == 0:\n    libc.pause()"
    assert victim.run(hang, timeout=0.5).status in ("timeout", "dead")


@pytest.mark.attack(
    tried="Trace, read or write other processes, the sibling's, the zygote's and the host's: ptrace, process_vm_*, /proc/PID/mem",
    wall="own pid namespace: they have no number here; the calls are refused",
    effect="no process but the kernel's own is found; no memory of another is read",
)
def test_other_processes_cannot_be_read_or_traced(arena: Arena, victim: Kernel) -> None:
    code = """
buffer = ctypes.create_string_buffer(64)
vector = struct.pack("PN", ctypes.addressof(buffer), 64)
for pid in {{*range(2, 200), *{pids}}} - {{int(name) for name in os.listdir("/proc/self/task")}}:
    for name in ("mem", "environ", "maps", "cmdline", "root", "ns/net", "fd"):
        attempt(name, os.stat, f"/proc/{{pid}}/{{name}}")
    attempt("ptrace", system, 101, 16, pid, 0, 0)
    attempt("seize", system, 101, 0x4206, pid, 0, 0)
    attempt("readv", system, 310, pid, vector, 1, vector, 1, 0)
    attempt("writev", system, 311, pid, vector, 1, vector, 1, 0)
    attempt("pidfd", os.pidfd_open, pid)
    attempt("prlimit", resource.prlimit, pid, resource.RLIMIT_NOFILE)
    attempt("scheduler", os.sched_getscheduler, pid)
    attempt("kcmp", system, 312, 1, pid, 0, 0, 0)
"""
    pids = [*arena.processes, os.getpid(), os.getppid()]
    victim.refused(code.format(pids=pids))
    assert victim.text("print(sorted(int(name) for name in os.listdir('/proc') if name.isdigit()))") == "[1]\n"


@pytest.mark.attack(
    tried="Search the kernel's own memory for secrets, keys of siblings and the host's environment",
    wall="the zygote never had them: what it received about an earlier kernel is wiped before the next fork",
    effect="no secret and no key but the kernel's own is found",
)
def test_memory_holds_no_secret_of_others(arena: Arena, victim: Kernel) -> None:
    code = """
found, keys, size = set(), set(), 0
with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
    for line in maps.read().splitlines():
        span, mode = line.split()[:2]
        if not mode.startswith("r") or "[v" in line:
            continue
        start, end = (int(number, 16) for number in span.split("-"))
        memory.seek(start)
        try:
            data = memory.read(end - start)
        except OSError:
            continue
        size += len(data)
        found.update(secrets_in(data))
        keys.update(key.decode() for key in re.findall(rb'"k[e]y": "([0-9a-f]{32})"', data))
        data = None
print(size > 10_000_000, found, *keys)
"""
    large, found, *keys = victim.text(code).split()
    own = victim.kernel._process.address.key.decode()
    assert (large, found) == ("True", "set()")
    assert set(keys) <= {own}


@pytest.mark.attack(
    tried="A Python loop, a loop in C, a sleep, each without end",
    wall="interrupt, then kill by pidfd",
    effect="the cell's status is `timeout` or `dead`; the event loop of the host is never blocked",
)
@pytest.mark.parametrize("loop", ["while True: pass", "sum(range(10**15))", "time.sleep(10**6)", "while True: os.getppid()"])
def test_endless_loops_end(victim: Kernel, loop: str) -> None:
    assert victim.run(loop, timeout=0.4).status in ("timeout", "dead")


@pytest.mark.attack(
    tried="Ignore, block, catch and eat interrupts",
    wall="after the grace the kernel is killed, which nothing inside can refuse",
    effect="the cell ends, if it must be with its kernel",
)
@pytest.mark.parametrize(
    "deaf",
    [
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass",
        "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: pass",
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
    ],
)
def test_interrupts_cannot_be_refused_for_long(victim: Kernel, deaf: str) -> None:
    assert victim.run(deaf, timeout=0.4).status in ("timeout", "dead")


@pytest.mark.attack(
    tried="End the kernel: os._exit, abort, a segmentation fault, an illegal instruction, exec of another program",
    wall="the host waits on a pidfd and not on messages",
    effect="the cell's status is `dead`; no core file, no zombie",
)
@pytest.mark.parametrize(
    "end",
    [
        "os._exit(0)",
        "os.abort()",
        "ctypes.string_at(0)",
        "signal.raise_signal(signal.SIGILL)",
        "os.execv('/bin/sleep', ['x', '99'])",
    ],
)
def test_a_kernel_that_ends_is_noticed(victim: Kernel, end: str) -> None:
    # The kernel is first of its namespace: signals it sends itself may be lost on it, then it just goes on.
    assert victim.run(end, timeout=1.0).status in ("dead", "ok" if "raise" in end else "dead")


@pytest.mark.attack(
    tried="Daemons: double forks in own sessions that ignore every signal, eat the CPU and outlive the cell",
    wall="whatever is forked is in the kernel's pid namespace, which ends with its first process",
    effect="they live until the kernel is given back, and not a moment longer",
)
def test_daemons_end_with_their_kernel(arena: Arena, victim: Kernel) -> None:
    code = """
for kind in range(3):
    if os.fork() == 0:
        os.setsid()
        libc.prctl(1, 0, 0, 0, 0)
        if os.fork() == 0:
            for number in range(1, 65):
                try: signal.signal(number, signal.SIG_IGN)
                except (OSError, ValueError): pass
            os.closerange(0, 128)
            if kind == 0:
                os.execv("/bin/sleep", ["sleep", "1000"])
            while True:
                if kind == 1: time.sleep(1000)
        os._exit(0)
print("ok")
"""
    assert victim.text(code) == "ok\n"
    assert victim.text("print(6 * 7)") == "42\n"
    assert len(arena.victims_processes()) >= 4


@pytest.mark.attack(
    tried="Give the zygote or the launcher a child or a zombie (CLONE_PARENT, clone3), leave zombies behind",
    wall="the system refuses it to the first process of a namespace; children's children fall to the kernel",
    effect="the zygote has no child it did not fork; zombies end with the kernel",
)
def test_no_child_can_be_slipped_to_the_zygote(victim: Kernel) -> None:
    code = """
attempt("parent", system, 56, 0x8000 | signal.SIGCHLD, 0, 0, 0, 0)
attempt("clone3", system, 435, struct.pack("11Q", 0x8000, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), 88)
attempt("namespace", system, 56, 0x20000000 | signal.SIGCHLD, 0, 0, 0, 0)
"""
    assert victim.refused(code) == 3
    orphans = (
        "for _ in range(10):\n    if os.fork() == 0:\n        if os.fork(): os._exit(0)\n        os._exit(0)\nprint('zombies')"
    )
    assert victim.text(orphans) == "zombies\n"
