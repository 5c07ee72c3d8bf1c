"""Program that runs a module of /opt/nbrl as it would any, with few processes and the system call filter: `program MODULE …`."""

import resource
import sys
from runpy import run_module

from nbrl.sandbox.inside import seccomp

_PROCESSES = 16


def main() -> None:
    resource.setrlimit(resource.RLIMIT_NPROC, (_PROCESSES, _PROCESSES))
    try:
        code = seccomp.program()
    except OSError:
        code = b""  # a machine that has none
    if code:
        seccomp.install(code)
    run_module(sys.argv.pop(1), run_name="__main__")


if __name__ == "__main__":
    main()
