"""The keeper: a small process that runs one command and never outlives its owner, nor lets the command's tree do so.

Run by path, on the standard library alone, so that it starts in milliseconds: `python -I -S keeper.py GRACE_S PIPE COMMAND…`,
where PIPE is the number of the read end of the owner's pipe. If it is 0 the command has no standard input, else that of the
keeper. Invariants:
- the owner's end, for whatever reason (kill -9 included), closes the pipe, and the whole tree is ended: SIGTERM, grace, SIGKILL;
- `stop GRACE_S` on the pipe does the same with the owner's own grace;
- when the command ends by itself, what it left behind is ended too;
- the keeper is a subreaper, so that a descendant that detached itself is still found; it exits only when no descendant is left,
  with the command's own exit status (128 + signal when a signal ended it).
"""

import contextlib
import ctypes
import os
import select
import signal
import sys
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
CLEAN_UP_S = 0.3
GIVE_UP_S = 10.0  # for SIGKILLed processes stuck in the kernel


def descendants(root: int) -> list[int]:
    """Return the living (not zombie) descendants of `root`, by one pass over /proc."""
    children: dict[int, list[tuple[int, str]]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", "rb") as file:
                    # The name is in parentheses and may hold anything; state and parent follow the last one.
                    state, parent = file.read().rpartition(b") ")[2].decode().split()[:2]
            except OSError:
                continue
            children.setdefault(int(parent), []).append((int(entry), state))
    pids, frontier = [], [root]
    while frontier:
        for pid, state in children.get(frontier.pop(), []):
            frontier.append(pid)
            if state not in "ZX":
                pids.append(pid)
    return pids


def given_environment() -> dict[bytes, bytes]:
    """Return the environment this process was started with; Python may have added a locale of its own to `os.environ`."""
    with open("/proc/self/environ", "rb") as file:
        pairs = (entry.partition(b"=") for entry in file.read().split(b"\0") if entry)
        return {name: value for name, _, value in pairs}


def send(pids: list[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):  # it may have ended meanwhile
            os.kill(pid, number)


class Keeper:
    def __init__(self, argv: list[str], grace_s: float, pipe: int) -> None:
        self.grace_s, self.pipe = grace_s, pipe
        self.status: int | None = None  # of the command, once it has ended
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        wake_read, self.wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.wake_read = wake_read
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # Only the pipe ends the tree: a signal meant for the owner's group, or a terminal's, must not leave it half ended.
        for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
            signal.signal(number, lambda *_: None)
        self.pid = self.spawn(argv)

    def spawn(self, argv: list[str]) -> int:
        keeper = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        try:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # the keeper itself may be killed -9
            if os.getppid() != keeper:
                os._exit(1)
            for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            if self.pipe == 0:
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            else:
                os.close(self.pipe)
            os.execvpe(argv[0], argv, given_environment())
        except OSError as error:
            os.write(2, f"cannot run {argv[0]}: {error.strerror}\n".encode())
        os._exit(127)

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.pid:
                code = os.waitstatus_to_exitcode(status)
                self.status = code if code >= 0 else 128 - code

    def wait(self, timeout_s: float | None) -> bytes | None:
        """Sleep until a child ends, the pipe is readable or time is up; return the pipe's bytes (empty: no owner), else None."""
        ready, _, _ = select.select([self.pipe, self.wake_read], [], [], timeout_s)
        if self.wake_read in ready:
            os.read(self.wake_read, 4096)
        self.reap()
        return os.read(self.pipe, 4096) if self.pipe in ready else None

    def run(self) -> int:
        while self.status is None:
            message = self.wait(None)
            if message == b"":
                os.close(self.pipe)  # a process that opens a shared pipe from now on finds no reader
                break
            if message is not None and message.startswith(b"stop "):
                self.grace_s = float(message.split()[1])
                break
        return self.end(self.grace_s)

    def end(self, grace_s: float) -> int:
        deadline = time.monotonic() + grace_s
        left = descendants(os.getpid())
        signalled: set[int] = set()
        while left and time.monotonic() < deadline:
            send([pid for pid in left if pid not in signalled], signal.SIGTERM)
            signalled.update(left)
            time.sleep(0.01)
            self.reap()
            left = descendants(os.getpid())
        deadline = time.monotonic() + GIVE_UP_S
        all_end = time.monotonic()
        if left and self.status is None:
            # The command first: helpers that end with it (multiprocessing's resource tracker) then tidy up.
            send([self.pid], signal.SIGKILL)
            all_end += CLEAN_UP_S
        while left:
            if time.monotonic() >= all_end:
                send(left, signal.SIGKILL)
            time.sleep(0.005)
            self.reap()
            left = descendants(os.getpid())
            if left and time.monotonic() > deadline:
                os.write(2, f"keeper: cannot end processes {left}\n".encode())
                break
        self.reap()
        return 137 if self.status is None else self.status


if __name__ == "__main__":
    sys.exit(Keeper(sys.argv[3:], float(sys.argv[1]), int(sys.argv[2])).run())
