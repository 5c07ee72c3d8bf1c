"""Identifies a process among those of all machines: whether it runs, what started it, where it listens, and the processor time of
it and of everything below it. What runs on other machines of a joined cluster is not below it and does not count.
"""

import ctypes
import os
import re
import signal
import socket
import threading
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import psutil

from nbrl.infra.errors import ServerError
from nbrl.infra.process.own_pages import LOCAL

BOOT = Path("/proc/sys/kernel/random/boot_id")
FORM = re.compile(r"(?P<place>.+)/(?P<pid>[0-9]{1,10})/(?P<started>[0-9]+)")
PR_SET_PDEATHSIG = 1
LOOK_S = 1.0
FIRST_NAMESPACE = 0xEFFFFFFC  # of processes
ALL = ("0.0.0.0", "::")


def identity() -> str:
    """Return what identifies this process: its machine, its number and its start, since numbers are used again."""
    return f"{_place()}/{os.getpid()}/{_started(os.getpid())}"


def is_running(process: str) -> bool | None:
    """Return whether the process with this identity runs; None if only another machine or container can know."""
    match = FORM.fullmatch(process)
    if not match or match["place"] != _place():
        return None
    return _started(int(match["pid"])) == match["started"]


def short_identity() -> str:
    """Return the number of this process and that of its container, for the name of a folder that it owns."""
    return f"{os.getpid()}.{_container():x}"


def has_ended(short: str) -> bool:
    """Return whether the process of a `short_identity` has ended; False too where only another container can know."""
    pid, _, container = short.partition(".")
    return container == f"{_container():x}" and not Path("/proc", pid).exists()


def _container() -> int:
    """Return the namespace in whose numbers processes are counted, counted from the kernel's first one."""
    return int(os.readlink("/proc/self/ns/pid").strip("pid:[]")) - FIRST_NAMESPACE


def _place() -> str:
    """Return what identifies this boot of this machine, and the container in whose numbers processes are counted."""
    return f"{socket.gethostname()}/{BOOT.read_text().strip()}/{os.readlink('/proc/self/ns/pid')}"


def _started(pid: int) -> str:
    """Return when a process was started, in the kernel's ticks; empty if there is none, or only its remains."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]


def end_with_parent(limit_s: float) -> None:
    """Get SIGTERM when the parent dies, kill -9 included, as by Ctrl-C in its terminal, and end at the latest `limit_s` after."""
    parent = os.getppid()
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(LOOK_S)
        time.sleep(limit_s)
        os._exit(os.EX_TEMPFAIL)

    threading.Thread(target=watch, name="parent", daemon=True).start()
    if os.getppid() != parent:  # it died in between
        os.kill(os.getpid(), signal.SIGTERM)


def processor_seconds() -> float:
    """Return user and system time of the process tree, with that of processes that ended and whose parent took note of it.

    Each node of an iteration asks twice, so it reads each process once: psutil takes four times as long.
    """
    below, ticks = defaultdict[int, list[int]](list), dict[int, int]()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # it ended meanwhile
            fields = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()
            below[int(fields[1])].append(int(name))
            ticks[int(name)] = sum(map(int, fields[11:15]))
    tree = [os.getpid()]
    for process in tree:
        tree += below[process]
    return sum(ticks.get(process, 0) for process in tree) / os.sysconf("SC_CLK_TCK")


def busy_seconds(pid: int) -> float:
    """Return the seconds for which threads of a process, and of those below it, ran or waited for a processor."""
    total = 0
    with suppress(psutil.Error):
        for process in [(top := psutil.Process(pid)), *top.children(recursive=True)]:
            for counts in Path(f"/proc/{process.pid}/task").glob("*/schedstat"):
                with suppress(OSError, ValueError):  # it ended meanwhile
                    ran, waited, _ = map(int, counts.read_text().split())
                    total += ran + waited
    return total / 1e9


def is_local(host: str) -> bool:
    """Return whether only this machine reaches a server that listens on `host`."""
    return host in LOCAL


def check_host(host: str) -> None:
    """Raises ServerError unless a server of this machine can listen on `host`."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as tried:
            tried.bind(address)
    except (OSError, UnicodeError) as error:
        raise ServerError(f"--host {host}: this machine cannot listen there ({error}); 0.0.0.0 is every address of it") from error


def names_of(host: str) -> tuple[str, ...]:
    """Return the names and addresses by which a server that listens on `host` is asked, in small letters and without brackets."""
    if is_local(host):
        return LOCAL
    names = [host]
    if host in ALL:
        addresses = [each.address for all_of in psutil.net_if_addrs().values() for each in all_of]
        names = [socket.gethostname(), socket.getfqdn(), *(address.partition("%")[0] for address in addresses)]
    return tuple(dict.fromkeys([*LOCAL, *(name.lower() for name in names)]))


def here(host: str) -> str:
    """Return the host at which this machine asks a server that listens on `host`."""
    return "127.0.0.1" if host in ALL else f"[{host}]" if ":" in host else host


def advertised(host: str) -> str:
    """Return the host at which other machines reach a server that listens on `host`."""
    return socket.gethostname() if host in ALL else here(host)
