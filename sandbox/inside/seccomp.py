"""The system calls a kernel may not make, as a BPF program for x86-64; used by both ways to start a kernel.

Everything not named is allowed, up to the newest call that was looked at: the namespaces and the absent capabilities are the
wall, this takes away the tools that have broken such walls before, what no namespace and no control group divides (buffers of
TCP, UDP and netlink, programs for the machine's packet filter, System V memory without a limit, huge pages, asynchronous I/O,
the watches of a user, the disk's flush), and protocols that would load kernel modules. `clone3` answers ENOSYS because its flags
lie in memory that a filter cannot read; the C library then falls back to `clone`, whose flags are checked.
"""

import ctypes
import errno
import platform
import struct

_DENIED = {
    "kcmp": 312, "ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "process_madvise": 440,
    "pidfd_getfd": 438, "perf_event_open": 298, "bpf": 321, "userfaultfd": 323, "memfd_secret": 447,
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "add_key": 248, "request_key": 249,
    "keyctl": 250, "unshare": 272, "setns": 308, "chroot": 161, "pivot_root": 155, "mount": 165, "umount2": 166,
    "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433,
    "mount_setattr": 442, "name_to_handle_at": 303, "open_by_handle_at": 304, "fanotify_init": 300, "quotactl": 179,
    "quotactl_fd": 443, "init_module": 175, "finit_module": 313, "delete_module": 176, "kexec_load": 246,
    "kexec_file_load": 320, "reboot": 169, "swapon": 167, "swapoff": 168, "acct": 163, "syslog": 103, "iopl": 172,
    "ioperm": 173, "modify_ldt": 154, "settimeofday": 164, "clock_settime": 227, "adjtimex": 159,
    "clock_adjtime": 305, "sethostname": 170, "setdomainname": 171, "vhangup": 153, "uselib": 134, "nfsservctl": 180,
    "migrate_pages": 256, "move_pages": 279, "lookup_dcookie": 212, "personality": 135, "statmount": 457,
    "listmount": 458, "cachestat": 451, "shmget": 29, "semget": 64, "msgget": 68, "mq_open": 240, "inotify_init": 253,
    "inotify_init1": 294, "sync": 162, "syncfs": 306, "io_setup": 206,
}  # fmt: skip
# Answered as done: they mean nothing to what a kernel may write, which is in memory, and for what it may read flush the disk.
_IDLE = {"fsync": 74, "fdatasync": 75, "sync_file_range": 277}
_NEWEST = 462  # mseal; numbers beyond are of later systems, or of the x32 interface
_CLONE, _CLONE3, _SOCKET, _SOCKETPAIR, _IOCTL, _FCNTL = 56, 435, 41, 53, 16, 72
_MMAP, _MEMFD_CREATE, _SETRLIMIT, _PRLIMIT, _SETSOCKOPT, _PRCTL = 9, 319, 160, 302, 54, 157
_NEW_NAMESPACES = 0x7E020000  # NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET
_UNIX, _INET, _TCP = 1, 2, 6
_STREAMS = (0x1, 0x801, 0x80001, 0x80801)  # with each of SOCK_NONBLOCK and SOCK_CLOEXEC
# Each with the place of its flags. Urgent data in unix sockets (MSG_OOB), which is not needed, has let processes out of
# sandboxes.
_SENDING = {"sendto": (44, 3), "sendmsg": (46, 2), "sendmmsg": (307, 3)}
_URGENT = 1
_SOL_SOCKET, _FILTERS = 1, (26, 50, 51, 52)  # SO_ATTACH_FILTER, _BPF, _REUSEPORT_CBPF, _REUSEPORT_EBPF
# What clients set of TCP, from TCP_NODELAY to TCP_USER_TIMEOUT; others, such as TCP_ULP, reach modules and rarely used code.
_USUAL = (1, 3, 4, 5, 6, 7, 8, 9, 12, 18)
_BUFFERS = (7, 8)  # SO_SNDBUF, SO_RCVBUF: those of TCP are no larger than the namespace's own bound
# MAP_GROWSDOWN, which RLIMIT_DATA does not count, and huge pages, which nothing does.
_UNCOUNTED, _HUGE = 0x100 | 0x40000, 0x4
_CORE = 4  # its limit of 1 keeps the host's handler of crashes from running; 0, which is lower, would not
_TERMINALS = (0x5412, 0x541C, 0x5423)  # TIOCSTI, TIOCLINUX, TIOCSETD
# Interfaces, addresses and namespaces of a socket: kernels hold sockets that were made on the host, in its network.
_INTERFACES, _BEYOND_INTERFACES = 0x890B, 0x8A00
# F_SETLEASE, F_NOTIFY: both reach files that are the host's. F_SETPIPE_SZ: pages for pipes are counted for all kernels' one user.
_SHARING = (1024, 1026, 1031)
_SCHED_CORE = 62  # tasks with which no others may share a core keep the others' hyperthreads idle
_ARCHITECTURE, _SECCOMP = 0xC000003E, 317

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ARCH, _ARGUMENT = 0, 4, 16


def program(loopback: bool = False) -> bytes:
    """Return the filter as `struct sock_filter`s, for bwrap's --seccomp or `install`. Raises OSError where there is none.

    With `loopback` there is TCP over IPv4 too, for a program that asks a port of this machine's own.
    """
    if platform.machine() != "x86_64":
        raise OSError(errno.ENOSYS, f"no system call filter is known for {platform.machine()}")
    get_action_available, refuse = 2, ctypes.c_uint32(_ERRNO)
    if ctypes.CDLL(None).syscall(_SECCOMP, get_action_available, 0, ctypes.byref(refuse)):
        raise OSError(errno.ENOSYS, "this kernel has no system call filters")
    code: list[tuple[int, int | str, str, str]] = [
        (_LOAD, _ARCH, "", ""),
        (_EQUAL, _ARCHITECTURE, "", "kill"),
        (_LOAD, _NUMBER, "", ""),
        (_AT_LEAST, _NEWEST + 1, "unknown", ""),
        (_EQUAL, _CLONE3, "unknown", ""),
        (_EQUAL, _CLONE, "clone", ""),
        (_EQUAL, _SOCKET, "socket", ""),
        (_EQUAL, _SOCKETPAIR, "socket", ""),
        (_EQUAL, _SETSOCKOPT, "setsockopt", ""),
        (_EQUAL, _IOCTL, "ioctl", ""),
        (_EQUAL, _FCNTL, "fcntl", ""),
        (_EQUAL, _MMAP, "mmap", ""),
        (_EQUAL, _MEMFD_CREATE, "memfd_create", ""),
        (_EQUAL, _SETRLIMIT, "setrlimit", ""),
        (_EQUAL, _PRLIMIT, "prlimit", ""),
        (_EQUAL, _PRCTL, "prctl", ""),
        *((_EQUAL, number, name, "") for name, (number, _) in _SENDING.items()),
        *((_EQUAL, number, "idle", "") for number in _IDLE.values()),
        *((_EQUAL, number, "deny", "") for number in _DENIED.values()),
        (_RETURN, _ALLOW, "", ""),
        # Here, for no jump is further than 255 steps.
        (0, "deny", "", ""),
        (_RETURN, _ERRNO | errno.EPERM, "", ""),
        (0, "idle", "", ""),
        (_RETURN, _ERRNO, "", ""),
        (0, "unknown", "", ""),
        (_RETURN, _ERRNO | errno.ENOSYS, "", ""),
        (0, "kill", "", ""),
        (_RETURN, _KILL, "", ""),
        (0, "clone", "", ""),
        (_LOAD, _ARGUMENT, "", ""),
        (_ANY_BIT, _NEW_NAMESPACES, "refuse", "allow"),
        (0, "socket", "", ""),
        (_LOAD, _ARGUMENT, "", ""),
        (_EQUAL, _UNIX, "allow", ""),
        *(((_EQUAL, _INET, "inet", ""),) if loopback else ()),
        (_RETURN, _ERRNO | errno.EAFNOSUPPORT, "", ""),
        (0, "inet", "", ""),
        (_LOAD, _ARGUMENT + 16, "", ""),
        (_EQUAL, _TCP, "stream", ""),
        (_EQUAL, 0, "", "no family"),
        (0, "stream", "", ""),
        (_LOAD, _ARGUMENT + 8, "", ""),
        *((_EQUAL, kind, "allow", "") for kind in _STREAMS),
        (0, "no family", "", ""),
        (_RETURN, _ERRNO | errno.EAFNOSUPPORT, "", ""),
        (0, "setsockopt", "", ""),
        (_LOAD, _ARGUMENT + 8, "", ""),
        (_EQUAL, _TCP, "tcp option", ""),
        (_EQUAL, _SOL_SOCKET, "", "allow"),
        (_LOAD, _ARGUMENT + 16, "", ""),
        *((_EQUAL, option, "refuse", "") for option in (*_FILTERS, *(_BUFFERS if loopback else ()))),
        (_RETURN, _ALLOW, "", ""),
        (0, "tcp option", "", ""),
        (_LOAD, _ARGUMENT + 16, "", ""),
        *((_EQUAL, option, "allow", "") for option in _USUAL),
        (_RETURN, _ERRNO | errno.EPERM, "", ""),
        *(
            step
            for name, (_, place) in _SENDING.items()
            for step in ((0, name, "", ""), (_LOAD, _ARGUMENT + 8 * place, "", ""), (_ANY_BIT, _URGENT, "refuse", "allow"))
        ),
        (0, "mmap", "", ""),
        (_LOAD, _ARGUMENT + 24, "", ""),
        (_ANY_BIT, _UNCOUNTED, "refuse", "allow"),
        (0, "memfd_create", "", ""),
        (_LOAD, _ARGUMENT + 8, "", ""),
        (_ANY_BIT, _HUGE, "refuse", "allow"),
        (0, "setrlimit", "", ""),
        (_LOAD, _ARGUMENT, "", ""),
        (_EQUAL, _CORE, "refuse", "allow"),
        (0, "prlimit", "", ""),
        (_LOAD, _ARGUMENT + 8, "", ""),
        (_EQUAL, _CORE, "", "allow"),
        # Both halves of the address of a new limit: none is only asked for.
        (_LOAD, _ARGUMENT + 16, "", ""),
        (_EQUAL, 0, "", "refuse"),
        (_LOAD, _ARGUMENT + 20, "", ""),
        (_EQUAL, 0, "allow", "refuse"),
        (0, "prctl", "", ""),
        (_LOAD, _ARGUMENT, "", ""),
        (_EQUAL, _SCHED_CORE, "refuse", "allow"),
        (0, "ioctl", "", ""),
        (_LOAD, _ARGUMENT + 8, "", ""),
        *((_EQUAL, request, "refuse", "") for request in _TERMINALS),
        (_AT_LEAST, _BEYOND_INTERFACES, "allow", ""),
        (_AT_LEAST, _INTERFACES, "refuse", "allow"),
        (0, "fcntl", "", ""),
        (_LOAD, _ARGUMENT + 8, "", ""),
        *((_EQUAL, command, "refuse", "") for command in _SHARING),
        (0, "allow", "", ""),
        (_RETURN, _ALLOW, "", ""),
        (0, "refuse", "", ""),
        (_RETURN, _ERRNO | errno.EPERM, "", ""),
    ]
    places: dict[str, int] = {}
    steps: list[tuple[int, int, str, str]] = []
    for operation, value, yes, no in code:
        if isinstance(value, str):
            places[value] = len(steps)
        else:
            steps.append((operation, value, yes, no))
    packed = b""
    for here, (operation, value, yes, no) in enumerate(steps):
        jumps = (places[target] - here - 1 if target else 0 for target in (yes, no))
        packed += struct.pack("HBBI", operation, *jumps, value)
    return packed


_prctl = ctypes.CDLL(None, use_errno=True).prctl


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def install(code: bytes) -> None:
    """Bind this thread and all that it starts from now on; it must be the process's only one."""
    set_no_new_privs, set_seccomp, filter_mode = 38, 22, 2
    described = _Program(len(code) // 8, code)
    if _prctl(set_no_new_privs, 1, 0, 0, 0) or _prctl(set_seccomp, filter_mode, ctypes.byref(described), 0, 0):
        raise OSError(ctypes.get_errno(), "the system call filter was refused")
