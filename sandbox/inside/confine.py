"""Confines a fork of the zygote: namespaces, mounts, no capabilities, no dangerous system calls.

Everything here runs before untrusted code does, in a single-threaded process.
"""

import ctypes
import fcntl
import os
import platform
import signal
import socket
import struct
from pathlib import Path
from typing import Any

from nbrl.sandbox.inside import seccomp

_NAMESPACES = 0x7E020000  # mount, cgroup, uts, ipc, user, pid, network
_NOSUID, _NODEV, _NOEXEC, _BIND, _REC, _SLAVE = 0x2, 0x4, 0x8, 0x1000, 0x4000, 0x80000
_PR_CAPBSET_DROP, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, _PR_SET_DUMPABLE = 24, 47, 4, 4
_CAPABILITY_VERSION_3 = 0x20080522

_SYS_CLONE = 56 if platform.machine() == "x86_64" else 220  # what newer architectures agree on

# The parts of /proc that belong to the machine's owner; walls/filesystem.py hides the same from fresh kernels.
HIDDEN = ("keys", "key-users", "cmdline", "timer_list", "sched_debug", "latency_stats")
# Terminals are counted for the whole machine: one kernel may not take them all.
_TERMINALS = 32
_TCP_BYTES = "4096 16384 131072"  # of a socket's buffer: least, usual and most

_libc = ctypes.CDLL(None, use_errno=True)
# Calls through this one keep the interpreter's lock, as a fork must.
_python = ctypes.PyDLL(None, use_errno=True)
# Looked up here, once for all kernels.
_mount_file_system, _prctl, _capset, _sethostname = _libc.mount, _libc.prctl, _libc.capset, _libc.sethostname
_CAPABILITY_COUNT = int(Path("/proc/sys/kernel/cap_last_cap").read_text()) + 1


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _mount(kind: str, target: str, flags: int, data: str = "", source: str = "none") -> None:
    _check(_mount_file_system(source.encode(), target.encode(), kind.encode(), flags, data.encode()), f"mount {kind} on {target}")


def _mounts(workspace: str, size: int, inodes: int) -> None:
    """Mount /proc, terminals and writable folders of this kernel's own over those of the zygote."""
    _mount("none", "/", _REC | _SLAVE)
    _mount("proc", "/proc", _NOSUID | _NODEV | _NOEXEC)
    for name in HIDDEN:
        if os.path.exists(f"/proc/{name}"):
            _mount("none", f"/proc/{name}", _BIND, source="/dev/null")
    _mount("devpts", "/dev/pts", _NOSUID | _NOEXEC, f"newinstance,ptmxmode=0666,mode=620,max={_TERMINALS}")
    for folder, mode in (("/dev/shm", "1777"), ("/tmp", "1777"), (workspace, "0700")):
        _mount("tmpfs", folder, _NOSUID | _NODEV, f"size={size},nr_inodes={inodes},mode={mode}")


def _loopback_up() -> None:
    set_flags, up = 0x8914, 1
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        fcntl.ioctl(sock, set_flags, struct.pack("16sh14x", b"lo", up))


def _drop_capabilities() -> None:
    for number in range(_CAPABILITY_COUNT):
        _check(_prctl(_PR_CAPBSET_DROP, number, 0, 0, 0), "drop a capability")
    _check(_prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0), "clear ambient capabilities")
    header = struct.pack("Ii", _CAPABILITY_VERSION_3, 0)
    _check(_capset(header, bytes(24)), "drop capabilities")


def fork() -> int:
    """Fork like os.fork, but with the child as pid 1 of new namespaces of every kind, and their master.

    os.fork cannot do this in one step, and a second fork would double what is dearest here, copying page tables. The thread
    id that the C library remembers stays right because parent and child are both pid 1, each of its own namespace.
    """
    if os.getpid() != 1:
        raise RuntimeError("only the first process of a pid namespace may fork kernels")
    _python.PyOS_BeforeFork()
    pid = int(_python.syscall(_SYS_CLONE, _NAMESPACES | signal.SIGCHLD, 0, 0, 0, 0))
    if pid == 0:
        _python.PyOS_AfterFork_Child()
    else:
        _python.PyOS_AfterFork_Parent()
    _check(min(pid, 0), "clone into new namespaces")
    return pid


def enter(birth: dict[str, Any], code: bytes) -> None:
    """Wall in the process that `fork` made; `code` is the system call filter, empty where there may be none.

    The order matters: mounts need the capabilities that are dropped after them, and the filter forbids what came before it.
    """
    # Before any id is mapped we look like the overflow user; the zygote's ids are the only ones that may be mapped.
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{birth['uid']} {birth['uid']} 1")
    _write("/proc/self/gid_map", f"{birth['gid']} {birth['gid']} 1")
    os.setsid()
    workspace = birth["workspace"]
    _mounts(workspace, birth["limits"]["workspace_bytes"], birth["limits"]["inodes"])
    os.chdir(workspace)
    _loopback_up()
    if birth["loopback"]:
        for name in ("tcp_rmem", "tcp_wmem"):  # no control group of version 1 counts these buffers
            _write(f"/proc/sys/net/ipv4/{name}", _TCP_BYTES)
    _sethostname(b"sandbox", 7)
    _write("/proc/sys/user/max_user_namespaces", "0")
    _drop_capabilities()
    # Dropping capabilities made the process undumpable, which would hide its own /proc entries from it.
    _check(_prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0), "set dumpable")
    if code:
        seccomp.install(code)
