"""Resource limits that a process puts on itself before untrusted code runs; they can only be lowered afterwards."""

import resource

_SIGNALS = 1024


def apply(limits: dict[str, int]) -> None:
    """Bind this process and its children. Call it inside the sandbox's own user namespace: processes are counted there.

    RLIMIT_DATA and not RLIMIT_AS: interpreters reserve address space that they never touch, and a clean MemoryError is
    better than a killed kernel.
    """
    for kind, value in (
        (resource.RLIMIT_DATA, limits["memory"]),
        (resource.RLIMIT_NPROC, limits["processes"]),
        (resource.RLIMIT_NOFILE, limits["files"]),
        (resource.RLIMIT_FSIZE, limits["file_bytes"]),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
        # Signals and timers in flight are counted for the host's user too, and would be missing there.
        (resource.RLIMIT_SIGPENDING, _SIGNALS),
        (resource.RLIMIT_NICE, 0),
        (resource.RLIMIT_RTPRIO, 0),
    ):
        bound = _within(value, resource.getrlimit(kind)[1])
        resource.setrlimit(kind, (bound, bound))
    # Stacks are not data. The soft limit stays, for the C library reserves as much for each thread.
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    bound = _within(limits["memory"], hard)
    resource.setrlimit(resource.RLIMIT_STACK, (_within(bound, soft), bound))


def _within(value: int, limit: int) -> int:
    return value if limit == resource.RLIM_INFINITY else min(value, limit)
