"""System calls: tools that have broken sandboxes before, and ways around the filter"""

import pytest

from tests.hostile.arena import Arena, Kernel

pytestmark = pytest.mark.timeout(600)


@pytest.mark.attack(
    tried="New namespaces, mounts, roots: unshare, setns, mount, pivot_root, chroot, clone flags, the new mount calls",
    wall="system call filter; no user namespaces within; no capabilities",
    effect="none succeeds; the kernel's and the host's mounts are what they were",
)
def test_no_namespace_or_mount_can_be_made(victim: Kernel) -> None:
    code = """
before = open("/proc/self/mountinfo").read()
for name in os.listdir("/proc/self/ns"):
    attempt("setns", system, 308, os.open("/proc/self/ns/" + name, os.O_RDONLY), 0)
for flag in (0x80, 0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
    attempt("unshare", system, 272, flag)
    if flag != 0x80:
        attempt("clone", system, 56, flag | signal.SIGCHLD, 0, 0, 0, 0)
    attempt("clone3", system, 435, struct.pack("11Q", flag, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0), 88)
attempt("mount", system, 165, b"none", b"/tmp", b"tmpfs", 0, None)
attempt("bind", system, 165, b"/proc", b"/tmp", None, 0x1000, None)
attempt("remount", system, 165, None, b"/usr", None, 0x20 | 0x1000, None)
attempt("umount", system, 166, b"/proc", 2)
attempt("pivot_root", system, 155, b".", b".")
attempt("chroot", os.chroot, "/tmp")
attempt("open_tree", system, 428, -100, b"/", 1)
attempt("fsopen", system, 430, b"tmpfs", 0)
attempt("fsmount", system, 432, 0, 0, 0)
attempt("move_mount", system, 429, -100, b"/tmp", -100, b"/usr", 0)
attempt("mount_setattr", system, 442, -100, b"/", 0, bytes(32), 32)
attempt("handle", system, 303, -100, b"/", bytes(128), bytes(8), 0)
attempt("by_handle", system, 304, -100, bytes(128), 0)
attempt("changed", lambda: 1 / (open("/proc/self/mountinfo").read() != before))
"""
    victim.refused(code)


@pytest.mark.attack(
    tried="Programs that do the same: unshare, nsenter, mount, chroot, bwrap, newuidmap, su, setpriv, capsh, modprobe",
    wall="the same: a program started here has no more rights",
    effect="each fails or is not there; no new namespace, uid or mount comes of it",
)
def test_tools_that_make_namespaces_fail(victim: Kernel) -> None:
    code = """
def run(*command):
    done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, timeout=20)
    if done.returncode:
        raise OSError(done.stderr)
    return done.stdout
for command in (
    "unshare -r id", "unshare -m true", "unshare -n true", "unshare -p -f true", "nsenter -t 1 -m true", "nsenter -t 1 -n ls",
    "mount -t tmpfs none /tmp", "mount --bind / /tmp", "umount /proc", "chroot / true", "chroot /workspace true",
    "bwrap --dev-bind / / true", "newuidmap 1 0 0 1", "su -c id", "sudo -n id", "setpriv --reuid 0 id", "pkexec id",
    "modprobe dummy", "insmod x.ko", "sysctl -w kernel.hostname=x", "hostname x", "ip link add dummy0 type dummy",
    "chrt -f 1 true", "renice -n -5 -p 1", "swapon -a", "reboot -f", "dmesg", "docker ps",
):
    attempt(command, run, "sh", "-c", command)
"""
    victim.refused(code)


@pytest.mark.attack(
    tried="bpf, io_uring, keyctl, perf, userfaultfd, kcmp, pidfd_getfd, memfd_secret, modules, kexec, reboot, swap, clocks …",
    wall="system call filter",
    effect="each is refused; the host's clock, modules and keys stay",
)
def test_dangerous_calls_are_refused(victim: Kernel) -> None:
    code = """
numbers = (312, 101, 310, 311, 440, 438, 298, 321, 323, 447, 425, 426, 427, 248, 249, 250, 300, 179, 443, 175, 313, 176, 246,
           320, 169, 167, 168, 163, 103, 172, 173, 154, 164, 227, 159, 305, 170, 171, 153, 256, 279, 135, 457, 458, 451, 162, 306)
for number in numbers:
    attempt(str(number), system, number, 0, 0, 0, 0, 0, 0)
page = ctypes.create_string_buffer(4096)
attempt("bpf", system, 321, 0, page, 120)
attempt("uring", system, 425, 8, page)
attempt("keyctl", system, 250, 0, -3, 0)
attempt("add_key", system, 248, b"user", b"x", b"y", 1, -3)
attempt("perf", system, 298, page, 0, -1, -1, 0)
attempt("perf-all", system, 298, page, -1, 0, -1, 0)
attempt("settime", time.clock_settime, time.CLOCK_REALTIME, 0)
attempt("reboot", system, 169, 0xfee1dead, 672274793, 0, 0)
attempt("sethostname", socket.sethostname, "canary")
"""
    assert victim.refused(code) >= 56


@pytest.mark.attack(
    tried="Take what the whole machine has one of: packet filters' programs, huge pages, asynchronous I/O, flushes, cores",
    wall="system call filter",
    effect="each is refused; a flush is answered as done, and nothing is",
)
def test_what_the_machine_has_one_of_is_out_of_reach(victim: Kernel) -> None:
    code = """
ours, theirs = socket.socketpair()
accept = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0xffffffff))
program = struct.pack("HxxxxxxP", 1, ctypes.addressof(accept))
for option in (26, 50, 51, 52):
    for level in (socket.SOL_SOCKET, 1 << 32 | socket.SOL_SOCKET):
        attempt("filter", system, 54, ours.fileno(), level, option, program, len(program))
attempt("aio", system, 206, 100, bytes(8))
attempt("huge map", system, 9, 0, 2 << 20, 3, 0x40022, -1, 0)
attempt("huge file", os.memfd_create, "huge", 4)
for option in (62, 1 << 32 | 62):
    attempt("core", system, 157, option, 1, 0, 0, 0)
print(did, refusals[-1].errno, libc.fsync(-1), libc.fdatasync(-1), libc.sync_file_range(-1, 0, 0, 0))
"""
    assert victim.refused(code) == 13
    assert victim.said[-1].count("[] 1 0 0 0") == 1


@pytest.mark.attack(
    tried="Have the host's handler of crashes run for a kernel; leave urgent data in unix sockets",
    wall="RLIMIT_CORE of 1, which the filter keeps: 0 would let the handler run; MSG_OOB is refused",
    effect="the limit stays, also for another process; no urgent data is sent",
)
def test_ways_into_the_systems_kernel_that_nobody_needs_are_shut(victim: Kernel) -> None:
    code = """
zero = struct.pack("QQ", 0, 0)
attempt("core", resource.setrlimit, resource.RLIMIT_CORE, (0, 0))
attempt("core", resource.prlimit, 0, resource.RLIMIT_CORE, (0, 0))
attempt("core", system, 160, 1 << 32 | 4, zero)
attempt("core", system, 302, 0, 1 << 32 | 4, zero, None)
attempt("core", system, 302, 0, 4, 1 << 32, None)
ours, theirs = socket.socketpair()
attempt("send", ours.send, b"x", socket.MSG_OOB)
attempt("sendmsg", ours.sendmsg, [b"x"], [], socket.MSG_OOB)
attempt("sendmmsg", system, 307, ours.fileno(), bytes(64), 1, socket.MSG_OOB)
print(resource.getrlimit(resource.RLIMIT_CORE), resource.prlimit(0, resource.RLIMIT_CORE))
"""
    assert victim.refused(code) == 8
    assert "(1, 1) (1, 1)" in victim.said[-1]


@pytest.mark.attack(
    tried="Calls by another table: i386 (int 0x80), x32 numbers, numbers newer than the filter",
    wall="the filter checks the table, and knows where its own knowledge ends",
    effect="a process that uses the i386 table is killed; other numbers do not exist",
)
def test_other_call_tables_are_no_way_around_the_filter(victim: Kernel) -> None:
    code = """
for number in (39, 101, 165, 272, 321, 425):
    attempt("x32", system, 0x40000000 | number, 0, 0, 0, 0, 0)
for number in (*range(463, 600), 0x3fffffff):
    attempt("new", system, number, 0, 0, 0, 0, 0)
# mov eax, NUMBER; int 0x80; ret
for number in (20, 26, 21, 310, 357):
    child = os.fork()
    if child == 0:
        page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        page.write(b"\\xb8" + struct.pack("I", number) + b"\\xcd\\x80\\xc3")
        ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
        os._exit(0)
    attempt("i386", lambda: 1 / (os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) not in (-signal.SIGSYS, -signal.SIGSEGV)))
"""
    assert victim.refused(code) == 6 + 138 + 5


@pytest.mark.attack(
    tried="Arguments the filter looks at, with bits set that the system ignores; a filter of one's own on top; a second thread",
    wall="the filter compares the 32 bits that the system uses; filters only add up, and bind all threads",
    effect="what was refused stays refused",
)
def test_the_filter_cannot_be_fooled_or_removed(victim: Kernel) -> None:
    code = """
high = 1 << 32
attempt("vsock", system, 41, high | 40, 1, 0)
attempt("packet", system, 41, high | 17, 3, 0)
attempt("raw", system, 41, 2, high | 3, 255)
attempt("tiocsti", system, 16, 0, high | 0x5412, b"x")
attempt("lease", system, 72, os.open(sys.executable, os.O_RDONLY), high | 1024, 0)
attempt("notify", system, 72, os.open("/usr", os.O_RDONLY), 1026, 0x80000001)
attempt("clone", system, 56, high | 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0)
attempt("unshare", system, (1 << 32) | 272, 0x10000000)
attempt("disable", system, 157, 22, 0, 0)
attempt("privileges", system, 157, 38, 0, 0, 0, 0)
allow_all = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0x7fff0000))
class Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))
own = Program(1, ctypes.addressof(allow_all))
libc.prctl(22, 2, ctypes.byref(own), 0, 0)
attempt("after", system, 272, 0x10000000)
thread = threading.Thread(target=attempt, args=("thread", system, 272, 0x10000000))
thread.start()
thread.join()
"""
    assert victim.refused(code) == 12


@pytest.mark.attack(
    tried="Push keys into terminals (TIOCSTI, TIOCLINUX), change line disciplines, take a controlling terminal",
    wall="own session without a terminal; system call filter",
    effect="the terminal of the host's user gets no input",
)
def test_no_terminal_of_the_host_is_reached(victim: Kernel) -> None:
    code = """
attempt("tty", os.open, "/dev/tty", os.O_RDWR)
ours, theirs = os.openpty()
for descriptor in (0, 1, 2, ours, theirs):
    attempt("tiocsti", fcntl.ioctl, descriptor, 0x5412, b"x")
    attempt("tioclinux", fcntl.ioctl, descriptor, 0x541c, b"\\x03")
    attempt("discipline", fcntl.ioctl, descriptor, 0x5423, struct.pack("i", 21))
attempt("vhangup", system, 153)
"""
    assert victim.refused(code) == 17


@pytest.mark.attack(
    tried="Hold locks, leases and watches on files that all kernels and the host share",
    wall="leases and watches are refused; shared files are read-only, so that record locks can only be for reading",
    effect="the host writes and locks its own files as before (an advisory flock can be held: a signal to siblings at most)",
)
def test_shared_files_cannot_be_blocked(arena: Arena, victim: Kernel) -> None:
    code = """
import fcntl
file = open("/opt/nbrl/nbrl/sandbox/inside/adopted_kernel.py")
for kind in (fcntl.F_RDLCK, fcntl.F_WRLCK):
    attempt("lease", fcntl.fcntl, file, 1024, kind)
attempt("record", fcntl.lockf, file, fcntl.LOCK_EX | fcntl.LOCK_NB)
attempt("immutable", fcntl.ioctl, file, 0x40086602, struct.pack("l", 16))
attempt("attribute", os.setxattr, file.name, "user.canary", b"x")
attempt("times", os.utime, file.name)
attempt("watch", system, 294, 0)
"""
    assert victim.refused(code) == 7
