"""What must stay as it is: secrets, files, sockets and processes outside the victim, and the state of the host."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Container
from pathlib import Path
from typing import NamedTuple

from tests.processes import descendants as tree
from tests.processes import stat

# The states of a process that runs or waits: not stopped, traced, dead or a zombie.
_WELL = "RSDI"


class Process(NamedTuple):
    """A process of the host, known by its number and the moment of its start; what else is here must never change."""

    pid: int
    started: int
    nice: int
    policy: int
    oom_score_adj: str
    limits: str


def process(pid: int) -> Process | None:
    """The process as it is now, or None when there is none."""
    try:
        fields = stat(pid)
        adjustment = Path(f"/proc/{pid}/oom_score_adj").read_text()
        limits = Path(f"/proc/{pid}/limits").read_text()
    except OSError:
        return None
    return Process(pid, int(fields[19]), int(fields[16]), int(fields[38]), adjustment, limits)


def descendants(besides: Container[int] = ()) -> dict[int, Process]:
    """All processes below this one, whatever their namespaces: nothing can leave this tree, its reapers are subreapers.

    Children of ours that are `besides` are left out, with all that is below them.
    """
    below = ((pid, process(pid)) for pid in tree(os.getpid(), besides))
    return {pid: known for pid, known in below if known is not None}


def unwell(pids: list[int]) -> list[int]:
    """Those that are stopped, traced, dead or zombies."""
    return [pid for pid in pids if process(pid) is None or stat(pid)[0] not in _WELL]


class Canaries:
    """Secrets on the host, each within reach of the uid that runs kernels, so that only the walls protect it."""

    def __init__(self, uid: int) -> None:
        self.secrets = {name: f"nbrl-canary-{name}-{secrets.token_hex(16)}" for name in ("file", "environment", "bystander")}
        self.folder = Path(tempfile.mkdtemp(prefix="nbrl-canaries-"))
        self.folder.chmod(0o777)
        self.file = self.folder / "canary.txt"
        self.file.write_text(self.secrets["file"])
        self.file.chmod(0o666)
        self._written = self.file.stat().st_mtime_ns
        os.environ["NBRL_CANARY"] = self.secrets["environment"]
        # A process of the host that runs as kernels do: to be seen, read, traced, stopped or killed.
        self.bystander = subprocess.Popen(
            ["/bin/cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env={"NBRL_CANARY": self.secrets["bystander"]},
            user=uid if os.geteuid() == 0 else None,
        )
        self.tcp = socket.create_server(("127.0.0.1", 0))
        self.udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.udp.bind(("127.0.0.1", 0))
        self.abstract = socket.socket(socket.AF_UNIX)
        self.abstract_name = f"nbrl-canary-{secrets.token_hex(4)}"
        self.abstract.bind(f"\0{self.abstract_name}")
        self.named = socket.socket(socket.AF_UNIX)
        self.named.bind(str(self.folder / "socket"))
        (self.folder / "socket").chmod(0o777)
        for sock in (self.abstract, self.named):
            sock.listen()
        for sock in (self.tcp, self.udp, self.abstract, self.named):
            sock.setblocking(False)

    def check(self) -> None:
        """Nothing was read into a connection, written, signalled."""
        assert self.file.read_text() == self.secrets["file"]
        assert self.file.stat().st_mtime_ns == self._written
        assert sorted(os.listdir(self.folder)) == ["canary.txt", "socket"]
        assert os.environ["NBRL_CANARY"] == self.secrets["environment"]
        for sock in (self.tcp, self.abstract, self.named):
            # Whoever ever connected still waits in the listener's queue.
            assert not _any(sock.accept), f"a connection came to {sock}"
        assert not _any(lambda: self.udp.recv(1)), "a datagram came"
        assert self.bystander.poll() is None

    def close(self) -> None:
        self.bystander.kill()
        self.bystander.communicate()
        for sock in (self.tcp, self.udp, self.abstract, self.named):
            sock.close()
        shutil.rmtree(self.folder)
        del os.environ["NBRL_CANARY"]


def _any(ask: object) -> bool:
    try:
        ask()  # type: ignore[operator]
    except BlockingIOError:
        return False
    return True


# What cells try to change: loopback, and interfaces that they try to make.
_INTERFACES = ("lo", "dummy0", "dummy9")


def mounts(below: str) -> list[str]:
    """What is mounted at the top of the machine's file system, in its system's folders, and in a folder of our own.

    Other places are left out: whoever else works on the machine mounts there what he likes.
    """
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        place, _, source = line.partition(" - ")
        _, _, device, root, point, options = place.split()[:6]
        if point.count("/") == 1 or point.startswith(("/proc/", "/sys/", "/dev/", f"{below}/")):
            found.append(f"{device} {root} {point} {options} {source}")
    return sorted(found)


def _interface(name: str) -> list[str]:
    """What is known of a network interface and its routes; nothing where there is none."""
    flags = Path("/sys/class/net", name, "flags")
    routes = Path("/proc/net/route").read_text().splitlines()
    return [*([flags.read_text()] if flags.exists() else []), *(line for line in routes if line.split()[0] == name)]


def host_state(folder: Path) -> dict[str, object]:
    """What a cell might change of the whole machine and others leave alone; `folder` is where the sandboxes' files lie."""
    names = ("core_pattern", "hostname", "domainname", "sysrq", "modprobe", "randomize_va_space", "panic", "shmmax", "msgmax")
    kernel = {name: Path("/proc/sys/kernel", name).read_text() for name in names if Path("/proc/sys/kernel", name).exists()}
    return {
        **kernel,
        "overcommit": Path("/proc/sys/vm/overcommit_memory").read_text(),
        "mounts": mounts(str(folder)),
        "network": {name: _interface(name) for name in _INTERFACES},
        "forwarding": Path("/proc/sys/net/ipv4/ip_forward").read_text(),
        "interrupts": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)],
        "stopped": unwell([os.getpid()]),
    }
