"""Inspects the protections of a kernel from outside, on the real process, before it runs any cell."""

import os
import select
from dataclasses import dataclass
from pathlib import Path

from nbrl.sandbox.errors import SandboxError, SandboxUnavailable
from nbrl.sandbox.settings import Protection, SandboxSettings
from nbrl.sandbox.walls.cgroups import Group

_NAMESPACES = ("user", "pid", "mnt", "net", "ipc", "uts", "cgroup")
_CAPABILITIES = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")


@dataclass(frozen=True)
class Meaning:
    """The purpose of a protection, the meaning of its absence, and how to fix that."""

    present: str
    absent: str
    fix: str


MEANINGS: dict[Protection, Meaning] = {
    "namespaces": Meaning(
        "a kernel sees its own users, processes, mounts, network, IPC, host name and control groups only",
        "a kernel shares kernel objects with the host",
        "allow unprivileged user namespaces (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone)",
    ),
    "no_network": Meaning(
        "a kernel has no network interface but its own loopback",
        "a kernel reaches a network",
        "allow network namespaces (sysctl user.max_net_namespaces)",
    ),
    "no_capabilities": Meaning(
        "a kernel has no capability, no way to one, and is not the host's root",
        "a kernel may administer what it can reach",
        "set sandbox.unprivileged_uid to a uid that owns nothing",
    ),
    "seccomp": Meaning(
        "the system calls that have broken such walls before are refused",
        "every system call of an ordinary process is allowed: namespaces alone are the wall",
        "use an x86-64 kernel with CONFIG_SECCOMP_FILTER",
    ),
    "cgroups": Meaning(
        "memory and processes are bounded for a kernel as a whole",
        "memory is bounded for each process only, so one kernel may take max_processes times memory_mb",
        "run as root, or as a user below a delegated control group (systemd-run --user --scope)",
    ),
}


def pid_of(pidfd: int) -> int:
    """Return the pid, as this process sees it, of a living process. Raises SandboxError if it has ended."""
    for line in Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "Pid" and int(value) > 0:
            return int(value)
    raise SandboxError("the kernel ended while it started: is memory_mb too small for its imports?")


def lacking(pidfd: int, group: Group | None) -> dict[Protection, str]:
    """Return the protections that a process does not have, each with what was found instead."""
    pid = pid_of(pidfd)
    try:
        faults = _look(Path(f"/proc/{pid}"))
        faults["cgroups"] = "no control group could be made" if group is None else _outside(group, pid)
    except (FileNotFoundError, ProcessLookupError):
        raise SandboxError("the kernel ended while it was inspected") from None
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    if poll.poll(0):
        # Its pid may belong to another process by now.
        raise SandboxError("the kernel ended while it was inspected")
    return {name: fault for name, fault in faults.items() if fault}


def demand(settings: SandboxSettings, missing: dict[Protection, str]) -> None:
    """Raises SandboxUnavailable if a required protection is missing."""
    for name in settings.require:
        if name in missing:
            raise refusal(name, missing[name])


def refusal(name: Protection, found: str) -> SandboxUnavailable:
    """Return the error for a required protection that is missing."""
    optional = "" if name in SandboxSettings.INDISPENSABLE else f", or take {name} out of sandbox.require"
    return SandboxUnavailable(f"a kernel would run without {name} ({found}): {MEANINGS[name].fix}{optional}")


def _look(process: Path) -> dict[Protection, str]:
    ours, theirs = _status(Path("/proc/self")), _status(process)
    own = Path("/proc/self/ns")
    shared = [name for name in _NAMESPACES if os.readlink(own / name) == os.readlink(process / "ns" / name)]
    lines = (process / "net/dev").read_text().splitlines()[2:]
    interfaces = [name for name in (line.partition(":")[0].strip() for line in lines) if name != "lo"]
    held = [f"{name} {theirs[name]}" for name in _CAPABILITIES if int(theirs[name], 16)]
    if theirs["NoNewPrivs"] != "1":
        held.append("NoNewPrivs 0")
    if "0" in theirs["Uid"].split():
        held.append("uid 0")
    # A filter under which the host itself runs is inherited and does not count.
    filters = int(theirs.get("Seccomp_filters", 1)) - int(ours.get("Seccomp_filters", 0))
    seccomp = theirs.get("Seccomp", "0")
    return {
        "namespaces": f"shared with the host: {', '.join(shared)}" if shared else "",
        "no_network": f"interfaces: {', '.join(interfaces)}" if interfaces else "",
        "no_capabilities": ", ".join(held),
        "seccomp": "" if seccomp == "2" and filters > 0 else f"Seccomp {seccomp}, {filters} filters of ours",
    }


def _status(process: Path) -> dict[str, str]:
    lines = (process / "status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _outside(group: Group, pid: int) -> str:
    return "" if group.holds(pid) else "the kernel is not in the group that was made for it"
