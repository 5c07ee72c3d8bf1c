"""The reaper between the host process and bubblewrap; run as a script with `python -I -S`, it imports nothing of nbrl.

Its first argument is JSON, further arguments are passed to what it starts.

It starts bubblewrap and watches the host process (by pidfd), the process between them and, where there is one, a lifeline (a pipe
whose other end only the host has). When any of these ends, or bubblewrap does, it kills every descendant, removes the socket
folder and the control groups and leaves. It is a child subreaper, so a bubblewrap monitor that dies early leaves its child to us,
not to init.

As root it also gives the kernel an unprivileged uid: in the kernel's own eyes uid 0 of the host would still be uid 0 (rlimits do
not bind it, /proc/sys is its own). That uid may not be able to reach the interpreter (for example below /root), so the
folders are first staged on a tmpfs in a private mount namespace.
"""

import contextlib
import ctypes
import errno
import json
import os
import resource
import select
import shutil
import signal
import sys
import time
from collections.abc import Iterable
from typing import Any

_CLONE_NEWNS = 0x00020000
_MS_BIND, _MS_REC, _MS_PRIVATE = 0x1000, 0x4000, 0x40000
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_STAGES = ("/mnt", "/media", "/srv")
# When the machine runs out of memory, kernels end before what serves or trains.
_SACRIFICE = 500

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    _check(_libc.mount(source.encode(), target.encode(), kind.encode(), flags, data.encode()), f"mount {target}")


def _stage(binds: list[list[str]]) -> list[list[str]]:
    """Return the binds with sources that any uid can reach."""
    _check(_libc.unshare(_CLONE_NEWNS), "unshare mount namespace")
    _mount("none", "/", "none", _MS_REC | _MS_PRIVATE)
    # Opened before the tmpfs covers what may hold some of them.
    opened = [(os.open(source, os.O_PATH), target, os.path.isdir(source)) for source, target in binds]
    stage = next(folder for folder in _STAGES if os.path.isdir(folder))
    _mount("tmpfs", stage, "tmpfs", 0, "mode=755,size=1m")
    staged = []
    for number, (descriptor, target, folder) in enumerate(opened):
        place = f"{stage}/{number}"
        if folder:
            os.mkdir(place)
        else:
            os.close(os.open(place, os.O_CREAT | os.O_WRONLY, 0o644))
        _mount(f"/proc/self/fd/{descriptor}", place, "none", _MS_BIND | _MS_REC)
        os.close(descriptor)
        staged.append([place, target])
    return staged


def _spawn(argv: list[str], keep: list[int], uid: int | None) -> int:
    ours = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            for descriptor in keep:
                os.set_inheritable(descriptor, True)
            _yield_to_the_host()
            if uid is not None:
                os.setgroups([])
                os.setresgid(uid, uid, uid)
                os.setresuid(uid, uid, uid)
            # Bubblewrap asks for the same, but later: until then it would outlive us.
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != ours:
                os._exit(127)
            os.execv(argv[0], argv)
        except OSError as error:
            os.write(2, f"cannot run {argv[0]}: {error}\n".encode())
        os._exit(127)
    return pid


def _yield_to_the_host() -> None:
    """Set what no cell may change: no crash handler of the host runs for a kernel, which is the first to end without memory.

    A limit of 1 and not of 0, which does not keep such a handler from running; the system call filter keeps it at 1.
    """
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    if hard == resource.RLIM_INFINITY or hard >= 1 or os.geteuid() == 0:
        resource.setrlimit(resource.RLIMIT_CORE, (1, 1))
    with open("/proc/self/oom_score_adj", "r+") as file:
        if int(file.read()) < _SACRIFICE:
            file.write(str(_SACRIFICE))


def _reap_all() -> None:
    """Kill until no descendant is left; orphans become our children, so the list of children ends empty."""
    while True:
        with open(f"/proc/self/task/{os.getpid()}/children") as listing:
            for child in listing.read().split():
                os.kill(int(child), signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def group_names(parents: Iterable[str | os.PathLike[str]], start: str | os.PathLike[str] | None) -> list[str]:
    """Return the parents, and the groups beside each other that are named `start` and a kernel's name, where there are such."""
    names = [os.fspath(parent) for parent in parents]
    if start is not None:
        with contextlib.suppress(OSError), os.scandir(os.path.dirname(start)) as entries:
            names += [entry.path for entry in entries if entry.name.startswith(f"{os.path.basename(start)}.")]
    return names


def remove_groups(parents: Iterable[str], patience: float = 10.0) -> None:
    """Remove control groups with their children, none of which may be there; `patience` seconds for processes to leave them."""
    deadline = time.monotonic() + patience
    for parent in parents:
        while os.path.isdir(parent):
            try:
                with os.scandir(parent) as entries:
                    children = [entry.path for entry in entries if entry.is_dir()]
                for child in [*children, parent]:
                    os.rmdir(child)
            except FileNotFoundError:
                continue  # another process removes it too
            except OSError as error:
                if error.errno != errno.EBUSY or time.monotonic() > deadline:
                    break
                time.sleep(0.005)


def launch_arguments() -> tuple[str, ...]:
    """Return the beginning of this script's command line."""
    return sys.executable, "-I", "-S", os.path.abspath(__file__)


def main() -> int:
    """Run between the host and the process that does the work, and end with it.

    Some hosts, Ray's workers among them, kill their children when they end; a killed process cleans nothing up.
    """
    spec = json.loads(sys.argv[1])
    os.setsid()
    ends = [os.pidfd_open(os.getpid())]
    with contextlib.suppress(ProcessLookupError):
        ends.append(os.pidfd_open(spec["parent"]))
    orphan = os.getppid() != spec["parent"]
    lifelines = [] if spec["lifeline"] is None else [spec["lifeline"]]
    for descriptor in lifelines:
        os.set_inheritable(descriptor, False)
    launcher = os.fork()
    if launcher == 0:
        # One for a whole tree must not end the work half-way: it ends with the host, or with the process above.
        signal.signal(signal.SIGTERM, lambda *_: None)
        return _launch(spec, orphan, [*ends, *lifelines])
    for descriptor in (*lifelines, *spec["keep"]):
        os.close(descriptor)
    return os.waitstatus_to_exitcode(os.waitpid(launcher, 0)[1]) & 0xFF


def _launch(spec: dict[str, Any], orphan: bool, ends: list[int]) -> int:
    """Run the sandbox until it, or the process behind one of `ends`, ends; then end all that is left of it and clean up."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    folder = spec["folder"]
    # Opened before anything is mounted over it.
    place = None if folder is None else os.open(os.path.dirname(folder), os.O_PATH | os.O_DIRECTORY)
    status = 1
    try:
        if orphan:
            return status
        binds = _stage(spec["binds"]) if spec["uid"] is not None else spec["binds"]
        argv = list(spec["before"])
        for source, target in binds:
            argv += ["--ro-bind", source, target]
        child = _spawn([*argv, *spec["after"], *sys.argv[2:]], spec["keep"], spec["uid"])
        for descriptor in spec["keep"]:
            os.close(descriptor)
        poll = select.poll()  # descriptors keep the numbers they had in the host, which may be too large for select
        for descriptor in (*ends, os.pidfd_open(child)):
            poll.register(descriptor, select.POLLIN)
        poll.poll()
        done, code = os.waitpid(child, os.WNOHANG)
        status = os.waitstatus_to_exitcode(code) if done else 0
    except OSError as error:
        os.write(2, f"launcher: {error}\n".encode())
        if error.errno == errno.EPERM:
            os.write(2, b"launcher: root here may not mount; run as an ordinary user instead\n")
    finally:
        _reap_all()
        if place is not None:
            shutil.rmtree(os.path.basename(folder), ignore_errors=True, dir_fd=place)
        remove_groups(group_names(spec["groups"], spec["cpu"]))
    return status & 0xFF


if __name__ == "__main__":
    sys.exit(main())
