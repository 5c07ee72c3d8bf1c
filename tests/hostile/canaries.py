"""What must stay as it is: secrets, files, sockets and processes outside the victim, and the state of the host."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

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


def _stat(pid: int) -> list[str]:
    """Fields of /proc/PID/stat from the state on; an OSError when the process is gone."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def process(pid: int) -> Process | None:
    """The process as it is now, or None when there is none."""
    try:
        fields = _stat(pid)
        adjustment = Path(f"/proc/{pid}/oom_score_adj").read_text()
        limits = Path(f"/proc/{pid}/limits").read_text()
    except OSError:
        return None
    return Process(pid, int(fields[19]), int(fields[16]), int(fields[38]), adjustment, limits)


def descendants() -> dict[int, Process]:
    """All processes below this one, whatever their namespaces: nothing can leave this tree, its reapers are subreapers."""
    parents: dict[int, list[int]] = {}
    for pid in (int(name) for name in os.listdir("/proc") if name.isdigit()):
        try:
            parents.setdefault(int(_stat(pid)[1]), []).append(pid)
        except OSError:
            continue
    found: dict[int, Process] = {}
    above = [os.getpid()]
    while above:
        for pid in parents.get(above.pop(), []):
            known = process(pid)
            if known is not None:
                found[pid] = known
                above.append(pid)
    return found


def unwell(pids: list[int]) -> list[int]:
    """Those that are stopped, traced, dead or zombies."""
    return [pid for pid in pids if process(pid) is None or _stat(pid)[0] not in _WELL]


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


def host_state() -> dict[str, object]:
    """What a cell might change of the whole machine."""
    names = ("core_pattern", "hostname", "domainname", "sysrq", "modprobe", "randomize_va_space", "panic", "shmmax", "msgmax")
    kernel = {name: Path("/proc/sys/kernel", name).read_text() for name in names if Path("/proc/sys/kernel", name).exists()}
    return {
        **kernel,
        "overcommit": Path("/proc/sys/vm/overcommit_memory").read_text(),
        "mounts": Path("/proc/self/mountinfo").read_text(),
        "network": sorted(os.listdir("/sys/class/net")),
        "routes": Path("/proc/net/route").read_text(),
        "forwarding": Path("/proc/sys/net/ipv4/ip_forward").read_text(),
        "interrupts": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)],
        "stopped": unwell([os.getpid(), os.getppid()]),
    }
