"""The limit on open files of this process, of which each kernel of a pool takes some."""

import os
import resource

from nbrl.sandbox.errors import SandboxError
from nbrl.sandbox.settings import SandboxSettings

# The most of one kernel. Alive it takes six: tool channel, pidfd, two of its workspace, two connections; while it starts both
# ends of the channel and five listening sockets. A fresh one has its launcher's pipes and files too.
_EACH = {"zygote": 8, "bubblewrap": 13}
_OTHERS = 64


def allow(settings: SandboxSettings) -> None:
    """Let this process hold `max_live` kernels by raising the soft limit if it is too low.

    Raises SandboxError when the hard limit is. Note that select.select, which nothing here uses, cannot wait for descriptors
    beyond 1023.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = len(os.listdir("/proc/self/fd")) + _EACH[settings.provisioner] * settings.max_live + _OTHERS
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise SandboxError(
            f"sandbox.max_live {settings.max_live} needs up to {needed} open files and this process may have {hard}: "
            f"raise the limit (ulimit -n), or lower max_live"
        )
    if soft != resource.RLIM_INFINITY and needed > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
