"""Files: read what is not the kernel's own, write where it may not"""

import ast
import secrets
import site
import sys
from pathlib import Path

import pytest

import nbrl.sandbox
from nbrl.infra.engine.parts import _mapped
from tests.hostile.arena import Arena, Kernel

pytestmark = pytest.mark.timeout(600)


@pytest.mark.attack(
    tried="Read the host's files: by path, by every process's root, working folder and descriptors",
    wall="root built from nothing: Python and /usr, read-only; own pid namespace",
    effect="no byte of a world-readable file of the host comes back",
)
def test_the_hosts_files_cannot_be_read(arena: Arena, victim: Kernel) -> None:
    code = """
import glob
roots = ["", "/proc/1/root", "/proc/self/root", "/proc/self/cwd/../../..", *glob.glob("/proc/[0-9]*/fd/*/../../..")]
for root in roots:
    for path in ({canary!r}, "/etc/shadow", "/etc/hostname", "/etc/machine-id", "/root/.ssh", {here!r}):
        attempt(root + path, open, root + path)
"""
    assert victim.refused(code.format(canary=str(arena.canaries.file), here=__file__)) >= 24
    listing = victim.text("print(*sorted(os.listdir('/')), *sorted(os.listdir('/proc/1/root/etc')))").split()
    allowed = "bin dev etc lib lib32 lib64 opt proc sbin tmp usr workspace fonts group passwd ld.so.cache localtime alternatives"
    assert set(listing) <= set(allowed.split())


@pytest.mark.attack(
    tried="Search every readable file of the sandbox for a secret",
    wall="nothing but Python, /usr and the kernel's own folders is mounted",
    effect="none of the host's and the sibling's secrets is found",
)
def test_no_secret_lies_in_any_file(victim: Kernel) -> None:
    code = """
found, count = [], 0
for top in ("/etc", "/opt/nbrl", "/tmp", "/dev/shm", "/workspace", "/proc/self", "/proc/1", "/proc/sys/kernel", "/proc/net"):
    for folder, _, names in os.walk(top):
        if "/task" in folder or "/map_files" in folder:
            continue
        for name in names:
            path = os.path.join(folder, name)
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
                data = os.read(descriptor, 1 << 20)
                os.close(descriptor)
            except OSError:
                continue
            count += 1
            found += secrets_in(data)
print(count > 50, found)
"""
    assert victim.text(code) == "True []\n"


@pytest.mark.attack(
    tried="Write outside the workspace: the host's canary, system folders, the code that other kernels run",
    wall="every mount read-only but three tmpfs of the kernel's own",
    effect="the host's files are unchanged and no new one appears where kernels' mounts come from",
)
def test_nothing_outside_the_workspace_can_be_written(arena: Arena, victim: Kernel) -> None:
    code = """
def write(path, flags=os.O_WRONLY | os.O_CREAT):
    descriptor = os.open(path, flags)
    os.write(descriptor, b"nbrl-was-here")
attempt("canary", write, {canary!r})
inside = "/opt/nbrl/nbrl/sandbox/inside"
for folder in ("/", "/usr", "/usr/lib", "/etc", "/dev", "/opt", inside, "/proc", *filter(None, sys.path)):
    attempt(folder, write, folder + "/nbrl-was-here")
import IPython
for path in (IPython.__file__, inside + "/adopted_kernel.py", "/etc/passwd", os.path.realpath(sys.executable)):
    attempt(path, write, path, os.O_WRONLY)
    attempt(path, os.unlink, path)
    attempt(path, os.chmod, path, 0o777)
    attempt(path, os.rename, path, path + "2")
    attempt(path, os.link, path, "/workspace/link")
"""
    before = {
        path: path.stat().st_mtime_ns for path in (Path(nbrl.sandbox.__file__).parent / "inside").iterdir() if path.is_file()
    }
    victim.refused(code.format(canary=str(arena.canaries.file)))
    assert {path: path.stat().st_mtime_ns for path in before} == before
    for folder in ("/", "/usr", "/etc", "/dev", "/opt", *site.getsitepackages(), *filter(None, sys.path)):
        assert not Path(folder, "nbrl-was-here").exists()


@pytest.mark.attack(
    tried="Leave by an inherited descriptor: openat, openat2 and /proc/self/fd of each",
    wall="kernels inherit sockets and pipes, never a folder or file of the host",
    effect="every descriptor is a socket, a pipe, an event or /dev/null; none opens a path",
)
def test_inherited_descriptors_lead_nowhere(arena: Arena, victim: Kernel) -> None:
    code = """
kinds = set()
for name in os.listdir("/proc/self/fd"):
    try:
        kinds.add(re.sub(r"[0-9]+", "N", os.readlink("/proc/self/fd/" + name)))
    except FileNotFoundError:
        continue
    how = struct.pack("QQQ", os.O_RDONLY, 0, 0)
    for path in (".", "..", "../../../.." + {canary!r}, "etc/shadow"):
        attempt("openat", lambda: os.open(path, os.O_RDONLY, dir_fd=int(name)))
        attempt("openat2", system, 437, int(name), path.encode(), how, 24)
        attempt("fchdir", os.fchdir, int(name))
"""
    victim.refused(code.format(canary=str(arena.canaries.file)))
    kinds = ast.literal_eval(victim.text("print(kinds)"))
    allowed = {"/dev/null", "socket:[N]", "pipe:[N]", "anon_inode:[eventfd]", "anon_inode:[eventpoll]"}
    assert kinds <= allowed


@pytest.mark.attack(
    tried="Make and open device nodes; open terminals that are not the kernel's own",
    wall="no capabilities, nodev mounts, own devpts, a /dev of harmless nodes",
    effect="no disk, memory or console device opens",
)
def test_devices_are_out_of_reach(victim: Kernel) -> None:
    code = """
import stat
for kind, major, minor in ((stat.S_IFBLK, 8, 0), (stat.S_IFBLK, 254, 0), (stat.S_IFCHR, 1, 1), (stat.S_IFCHR, 5, 1)):
    attempt("mknod", os.mknod, f"/tmp/node{major}-{minor}", 0o666 | kind, os.makedev(major, minor))
names = ("mem", "kmem", "port", "kmsg", "sda", "vda", "nvme0n1", "console", "tty0", "tty1", "ttyS0", "fuse", "kvm", "net/tun")
for name in (*names, "vhost-vsock", "snapshot", "loop-control", "uinput", "dri/card0", "nvidia0", "nvidiactl", "tty"):
    attempt(name, os.open, "/dev/" + name, os.O_RDWR)
"""
    victim.refused(code)
    listing = set(victim.text("print(*os.listdir('/dev'), *os.listdir('/dev/pts'))").split())
    allowed = {
        "core",
        "fd",
        "full",
        "null",
        "ptmx",
        "pts",
        "random",
        "shm",
        "stderr",
        "stdin",
        "stdout",
        "tty",
        "urandom",
        "zero",
    }
    assert listing <= allowed


@pytest.mark.attack(
    tried="Read what /proc tells of the machine's users: keys, kernel log, kernel memory, symbols",
    wall="own /proc with those files hidden; no capabilities",
    effect="no key of the host's user, no boot parameter, no address of the kernel, no log is shown",
)
def test_proc_tells_nothing_of_the_hosts_users(victim: Kernel) -> None:
    code = """
attempt("kcore", lambda: os.read(os.open("/proc/kcore", os.O_RDONLY), 16))
attempt("kmsg", lambda: os.read(os.open("/proc/kmsg", os.O_RDONLY | os.O_NONBLOCK), 16))
attempt("dmesg", lambda: 1 / (subprocess.run(["dmesg"], capture_output=True).returncode == 0))
attempt("syslog", system, 103, 3, ctypes.create_string_buffer(4096), 4096)
for name in ("keys", "key-users", "cmdline", "timer_list"):
    attempt(name, lambda: 1 / len(open("/proc/" + name).read()))
attempt("symbols", lambda: 1 / any(int(line.split()[0], 16) for line in open("/proc/kallsyms")))
"""
    victim.refused(code)


@pytest.mark.attack(
    tried="Map files whose names are no text, or that of an engine's memory, so that the host stumbles over /proc/PID/maps",
    wall="the search for processes that use an engine's memory skips sandboxes, and reads bytes",
    effect="engines start and end as before; what a killed one left is not held back",
)
def test_what_is_mapped_confuses_nobody(victim: Kernel) -> None:
    name = f"/dev/shm/sglang_loads_{secrets.token_hex(8)}"
    code = f"""
held = []
for path in (b"/tmp/\\xff\\xfe", {name!r}):
    with open(path, "w+b") as file:
        file.truncate(4096)
        held.append(mmap.mmap(file.fileno(), 4096))
print(len(held))
"""
    assert victim.text(code) == "2\n"
    assert not _mapped(Path(name))
