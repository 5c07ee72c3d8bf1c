"""Exhaustion: take what is shared with others: descriptors, terminals, watches, signals, sockets, kernels"""

import ctypes
import os
import socket
from pathlib import Path

import pytest

from nbrl.sandbox.pool import KernelPool
from tests.hostile.arena import Arena, Kernel

pytestmark = pytest.mark.timeout(600)


@pytest.mark.attack(
    tried="Open all descriptors the system has; use up those of the kernel itself",
    wall="RLIMIT_NOFILE for each process",
    effect="an error in the cell; the kernel lives or its cell is `dead`, no other process is short of descriptors",
)
def test_descriptors_are_bounded(arena: Arena, victim: Kernel) -> None:
    code = """
held = []
try:
    while True:
        held.append(os.open("/dev/null", os.O_RDONLY))
except OSError as error:
    count = len(held)
    for descriptor in held[:8]:
        os.close(descriptor)
print(count)
"""
    assert int(victim.text(code)) < arena.settings.max_open_files
    victim.run("while True: os.open('/dev/null', os.O_RDONLY)")
    victim.run("1", timeout=1.0)


@pytest.mark.attack(
    tried="Take all terminals of the machine",
    wall="zygote: a number for each kernel's devpts; bubblewrap: processes times descriptors, the host keeps a reserve",
    effect="the host still opens terminals; with the zygote so does the sibling",
)
def test_terminals_are_left_for_others(arena: Arena, victim: Kernel) -> None:
    code = """
for _ in range(40):
    if os.fork() == 0:
        try:
            while True: os.open("/dev/ptmx", os.O_RDWR)
        except OSError:
            time.sleep(100)
time.sleep(0.5)
"""
    victim.run(code, timeout=100.0)
    for descriptor in os.openpty():
        os.close(descriptor)
    if arena.provisioner == "zygote":
        done = arena.sibling.run("import os\n[os.close(descriptor) for descriptor in os.openpty()]")
        assert done.status == "ok", done


@pytest.mark.attack(
    tried="Take what the system counts for a user as a whole: watches, pending signals, timers, message queues, shared memory",
    wall="RLIMIT_SIGPENDING and RLIMIT_MSGQUEUE; inotify, System V and POSIX queues are refused",
    effect="the host's user still gets signals, timers and watches",
)
def test_what_is_counted_for_a_user_is_left_for_others(arena: Arena, victim: Kernel) -> None:
    code = """
timers = 0
identity, event = ctypes.c_int(), struct.pack("QiiQQQQQQ", 0, signal.SIGRTMIN, 0, *[0] * 6)
while libc.syscall(222, 1, event, ctypes.byref(identity)) == 0 and timers < 100_000:
    timers += 1
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMIN + 1])
pending = 0
while libc.sigqueue(os.getpid(), signal.SIGRTMIN + 1, ctypes.c_void_p(0)) == 0 and pending < 100_000:
    pending += 1
attempt("watch", system, 253)
attempt("watch1", system, 294, 0)
attempt("fanotify", system, 300, 0, 0)
attempt("shared", system, 29, 0, 1 << 20, 0o1600)
attempt("semaphores", system, 64, 0, 100, 0o1600)
attempt("queue", system, 68, 0, 0o1600)
attempt("posix", system, 240, b"queue", os.O_CREAT | os.O_RDWR, 0o600, None)
"""
    assert victim.refused(code) == 7
    taken = sum(int(number) for number in victim.text("print(timers, pending)").split())
    assert 0 < taken <= 2048
    # Of the user who runs kernels, on the host.
    assert _queued(arena.canaries.bystander.pid) <= taken
    libc = ctypes.CDLL(None, use_errno=True)
    for descriptor in [libc.inotify_init1(os.O_CLOEXEC) for _ in range(4)]:
        assert descriptor >= 0
        os.close(descriptor)


@pytest.mark.attack(
    tried="Fill socket buffers and pipes, exhaust ports and connections",
    wall="own network namespace; RLIMIT_NOFILE; buffers belong to the memory control group where there is one",
    effect="the host still makes sockets and connections",
)
def test_sockets_and_pipes_are_left_for_others(victim: Kernel) -> None:
    code = """
held = []
try:
    while True:
        ours, theirs = socket.socketpair()
        held += [ours, theirs]
        ours.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 30)
        try:
            while True: ours.send(bytes(1 << 16))
        except BlockingIOError: pass
except OSError:
    held.clear()
try:
    while True:
        held += os.pipe()
except OSError:
    for descriptor in held: os.close(descriptor)
print("ok")
"""
    assert victim.run(code).status in ("ok", "dead")
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()), server.accept()[0]:
        reading, writing = os.pipe()
        os.close(reading)
        os.close(writing)


@pytest.mark.attack(
    tried="Enlarge pipes (F_SETPIPE_SZ) until the pages that the system allows a user for all its pipes are used up",
    wall="system call filter; by plain pipes the same takes a thousand of them (see above)",
    effect="pipes of siblings and of the host are as large as before",
)
def test_pipes_cannot_be_enlarged(arena: Arena, victim: Kernel) -> None:
    size = "reading, writing = os.pipe()\nprint(fcntl.fcntl(writing, fcntl.F_GETPIPE_SZ))\nos.close(reading), os.close(writing)"
    before = arena.sibling.text("import fcntl\n" + size)
    code = """
done, told = os.pipe()
first, held = os.getpid(), []
for _ in range(2):
    if os.getpid() == first:
        os.fork()
for _ in range(30):
    held += os.pipe()
    attempt("enlarge", fcntl.fcntl, held[-1], fcntl.F_SETPIPE_SZ, 1 << 20)
    attempt("enlarge", system, 72, held[-1], 1 << 32 | fcntl.F_SETPIPE_SZ, 1 << 20)
if os.getpid() != first:
    os.write(told, b"x")
    time.sleep(100)
for _ in range(2):
    os.read(done, 1)
"""
    said = victim.run(code)
    assert said.status == "ok", said
    assert arena.sibling.text(size) == before
    assert victim.refused("") == 60


@pytest.mark.attack(
    tried="Keep descriptors under way in unix sockets, which the system counts for all kernels' one user",
    wall="a newborn kernel sends its own to the host before its limits bind",
    effect="new kernels are born meanwhile; siblings' cells may be refused to pass descriptors on",
)
def test_descriptors_under_way_keep_no_kernel_from_birth(arena: Arena, victim: Kernel) -> None:
    code = """
held, count, null = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM), 0, os.open("/dev/null", os.O_RDONLY)
try:
    while count < 100_000:
        message = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("250i", *[null] * 250))]
        held[0].sendmsg([b"x"], message, socket.MSG_DONTWAIT)
        count += 250
except OSError:
    pass
print(count)
"""
    assert int(victim.text(code)) > arena.settings.max_open_files
    newborn = arena.born()
    assert newborn.text("print(6 * 7)") == "42\n"
    newborn.close()


@pytest.mark.attack(
    tried="Hold kernels for ever, so that none is left for others",
    wall="the pool owns every kernel and kills it when its user is done or gone",
    effect="what a cell does cannot keep a kernel's place",
)
def test_a_kernel_that_will_not_end_gives_its_place_back(arena: Arena, victim: Kernel) -> None:
    deaf = "import os, signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nfor _ in range(3): os.fork()\nwhile True: pass"

    async def crowd() -> int:
        settings = arena.settings.model_copy(update={"max_live": 1})
        ended = 0
        async with KernelPool(settings) as pool:
            for _ in range(2):
                async with pool.kernel() as kernel:
                    ended += (await kernel.execute(deaf, timeout=0.2)).status == "dead"
        return ended

    assert arena.wait(crowd()) == 2


def _queued(pid: int) -> int:
    """Signals and timers in flight of the user of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1].partition("/")[0]) for line in lines if line.startswith("SigQ:"))
