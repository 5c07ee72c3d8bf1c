"""Resource limits that a process puts on itself before untrusted code runs; they can only be lowered afterwards."""

import resource


def apply(limits: dict[str, int]) -> None:
    """Bind this process and its children. Call it inside the sandbox's own user namespace: processes are counted there.

    RLIMIT_DATA and not RLIMIT_AS: interpreters reserve address space that they never touch, and a clean MemoryError is
    better than a killed kernel.
    """
    for kind, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_DATA, limits["memory"]),
        (resource.RLIMIT_NPROC, limits["processes"]),
        (resource.RLIMIT_NOFILE, limits["files"]),
        (resource.RLIMIT_FSIZE, limits["file_bytes"]),
        (resource.RLIMIT_MEMLOCK, 0),
        (resource.RLIMIT_MSGQUEUE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (bound, bound))
