"""Open files of this process: what the kernels of a pool take on the host."""

import os
import resource

from sandbox.errors import SandboxError

# Of one kernel: tool channel, pidfd, workspace, two connections; while it is born its five listening sockets and its end of
# the channel too; a cold one has a launcher's lifeline and complaints.
_EACH = 14
_OTHERS = 64


def allow(kernels: int) -> None:
    """Let this process hold so many kernels: raises the soft limit where it is too low.

    Raises SandboxError when the hard limit is. Note that select.select, which nothing here uses, cannot wait for descriptors
    beyond 1023.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = len(os.listdir("/proc/self/fd")) + _EACH * kernels + _OTHERS
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise SandboxError(
            f"sandbox.max_live {kernels} needs up to {needed} open files and this process may have {hard}: "
            f"raise the limit (ulimit -n), or lower max_live"
        )
    if soft != resource.RLIM_INFINITY and needed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
