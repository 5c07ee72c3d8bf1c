"""A limit on the memory and the processes of each kernel as a whole, by control groups of its own, where they can be made; and,
where there is that controller too, one share of the processors.

Rlimits bind one process; a kernel that forks has as many times `memory_mb`. A group binds all of it, pages of its tmpfs
included. Every launcher has one parent group `nbrl-<token>` in each hierarchy, and below it as many groups as kernels lived at
once: one that has ended leaves its group to the next. The launcher removes them all when everything inside has ended, so
nothing stays whatever becomes of us.

Outside of a group every session has a share of the processors, and a kernel makes as many sessions as it likes; in one it has
what one session has. In a hierarchy of their own these groups are `nbrl-<token>.<number>`, without a parent, below which all
kernels together would have no more than that. In version 2 they have what one group of the host has.

Version 1: below our own group, in the `memory` and the `pids` hierarchy. Version 2: below our own group when that is the
root, else beside it (a group with processes may not have children with limits), which an ordinary user may do where the
parent is delegated, as it is below systemd's user manager.
"""

import asyncio
import contextlib
import errno
import os
import posixpath
from pathlib import Path
from typing import NamedTuple

from nbrl.sandbox.settings import SandboxSettings
from nbrl.sandbox.walls.launcher import group_names, remove_groups

_CONTROLLERS = ("memory", "pids")
_MIB = 1024 * 1024
# Page tables, kernel stacks, socket buffers, and the zygote's pages that a kernel writes to: RLIMIT_DATA has to bite first.
_HEADROOM_MB = 64
_PATIENCE_S = 2.0
_LEFT = 4 * _MIB  # bytes that may still be counted for a kernel that has ended: remains of its namespaces


class Hierarchy(NamedTuple):
    """A mounted hierarchy: its version, its controllers, where it is mounted, and our own group in it."""

    version: int
    controllers: frozenset[str]
    top: Path
    own: Path


def hierarchies(mountinfo: str, membership: str) -> list[Hierarchy]:
    """Return the hierarchies of /proc/self/mountinfo and /proc/self/cgroup in which our own group is visible."""
    groups: dict[str, str] = {}
    for line in membership.splitlines():
        _, names, path = line.split(":", 2)
        groups.update(dict.fromkeys(names.split(","), path))
    mounted = []
    for line in mountinfo.splitlines():
        mount, _, source = line.partition(" - ")
        kind, *_, options = source.split(" ")
        if kind not in ("cgroup", "cgroup2"):
            continue
        controllers = groups.keys() & ({""} if kind == "cgroup2" else {*options.split(",")})
        root, top = mount.split(" ")[3:5]
        if not controllers:
            continue
        path = groups[min(controllers)]
        below = posixpath.relpath(path, root)
        if ".." not in (*path.split("/"), *below.split("/")):
            mounted.append(Hierarchy(1 if kind == "cgroup" else 2, frozenset(controllers), Path(top), Path(top, below)))
    return mounted


class CgroupPlan(NamedTuple):
    """The possible places of one launcher's parent groups: one for each controller (version 1), or the first that works (2).

    In version 1 `cpu` starts the names of the kernels' groups for the processors, where that controller is by itself.
    """

    version: int
    parents: tuple[Path, ...]
    cpu: Path | None = None


def plan(name: str) -> CgroupPlan:
    """Plan the groups without making any. A plan without parents means that the machine has no control groups."""
    mounted = hierarchies(Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text())
    first = {controller: place.own for place in mounted if place.version == 1 for controller in place.controllers}
    if all(controller in first for controller in _CONTROLLERS):
        parents = tuple(dict.fromkeys(first[controller] / name for controller in _CONTROLLERS))
        cpu = first["cpu"] / name if "cpu" in first else None
        return CgroupPlan(1, parents, None if cpu in parents else cpu)
    second = next((place for place in mounted if place.version == 2), None)
    if second is None:
        return CgroupPlan(2, ())
    beside = [second.own.parent / name] if second.own != second.top else []
    return CgroupPlan(2, (second.own / name, *beside))


def _write(file: Path, value: object) -> None:
    descriptor = os.open(file, os.O_WRONLY)
    try:
        os.write(descriptor, str(value).encode())
    finally:
        os.close(descriptor)


def _enable(group: Path) -> None:
    """Enable the controllers for the children of `group`, that of the processors if available."""
    enabled = (group / "cgroup.subtree_control").read_text().split()
    if not {*_CONTROLLERS} <= {*enabled}:
        _write(group / "cgroup.subtree_control", " ".join(f"+{controller}" for controller in _CONTROLLERS))
    if "cpu" not in enabled and "cpu" in (group / "cgroup.controllers").read_text().split():
        with contextlib.suppress(OSError):
            _write(group / "cgroup.subtree_control", "+cpu")


class Group:
    """The group of one kernel after the other: a folder in each hierarchy that bounds it, perhaps one more for its share of the
    processors. `free` are those without a kernel."""

    def __init__(self, bounds: tuple[Path, ...], share: tuple[Path, ...], usage: str, free: "list[Group]") -> None:
        self._bounds, self._share = bounds, share
        self._usage = bounds[0] / usage
        self._free = free

    def holds(self, pid: int) -> bool:
        """Return whether the process is a member of every group that bounds it."""
        return all(str(pid) in (folder / "cgroup.procs").read_text().split() for folder in self._bounds)

    def take(self, pid: int) -> None:
        """Move a process, with what it will fork, here. Raises OSError when it is gone."""
        for folder in self._bounds:
            _write(folder / "cgroup.procs", pid)
        try:
            for folder in self._share:
                _write(folder / "cgroup.procs", pid)
        except OSError:
            remove_groups(map(str, self._share), patience=0)
            self._share = ()

    async def leave(self) -> None:
        """Free the group for another kernel once this one's processes are gone. If one stays too long, or its memory is still
        counted, the group is removed instead, at the latest with its parent.
        """
        deadline = asyncio.get_running_loop().time() + _PATIENCE_S
        try:
            while occupied := int((self._bounds[-1] / "pids.current").read_text()):
                if asyncio.get_running_loop().time() > deadline:
                    break
                await asyncio.sleep(0.005)
            if not occupied and int(self._usage.read_text()) <= _LEFT:
                self._free.append(self)
                return
        except OSError:
            pass  # the launcher has removed it
        self.remove()

    def remove(self) -> None:
        """Remove the group if it is empty."""
        for folder in (*self._bounds, *self._share):
            with contextlib.suppress(OSError):
                folder.rmdir()


class Groups:
    """The parent groups of one launcher, made; `admit` moves each kernel into a child of its own."""

    def __init__(self, plan: CgroupPlan, settings: SandboxSettings) -> None:
        self._plan = plan
        memory = memory_limit(settings)
        self._memory = ("memory.limit_in_bytes" if plan.version == 1 else "memory.max", memory)
        self._swap = ("memory.memsw.limit_in_bytes", memory) if plan.version == 1 else ("memory.swap.max", 0)
        self._pids = ("pids.max", settings.max_processes)
        self._usage = "memory.usage_in_bytes" if plan.version == 1 else "memory.current"
        self._free: list[Group] = []

    @classmethod
    def make(cls, plan: CgroupPlan, settings: SandboxSettings) -> "Groups":
        """Make the parents where the plan says. Raises OSError, with nothing left, where none can be made."""
        if plan.version == 1:
            try:
                for parent in plan.parents:
                    parent.mkdir()
            except OSError:
                remove_groups(map(str, plan.parents))
                raise
            return cls(plan, settings)
        failure = OSError(errno.ENOENT, "no hierarchy of control groups with memory and pids controllers is mounted")
        for parent in plan.parents:
            try:
                if not os.access(parent.parent / "cgroup.procs", os.W_OK):
                    raise OSError(errno.EACCES, f"processes may not be moved within {parent.parent}")
                _enable(parent.parent)
                parent.mkdir()
                _enable(parent)
            except OSError as error:
                failure = error
                remove_groups([str(parent)])
                continue
            return cls(CgroupPlan(2, (parent,)), settings)
        raise failure

    def admit(self, pid: int, name: str) -> Group:
        """Move a process, with what it will fork, into a group that is free, else into a new one of this name: to make a group
        costs as much as a tenth of a kernel. May wait some milliseconds for the kernel's RCU: call it in a thread. Raises
        OSError, with nothing left behind, when the process is gone."""
        try:
            group = self._free.pop()
        except IndexError:
            group = self._made(name)
        try:
            group.take(pid)
        except OSError:
            group.remove()
            raise
        return group

    def _made(self, name: str) -> Group:
        folders = tuple(parent / name for parent in self._plan.parents)
        try:
            for folder in folders:
                folder.mkdir()
            memory, pids = folders[0], folders[-1]
            _write(memory / self._memory[0], self._memory[1])
            if (memory / self._swap[0]).exists():  # not without swap accounting
                _write(memory / self._swap[0], self._swap[1])
            _write(pids / self._pids[0], self._pids[1])
        except OSError:
            remove_groups(map(str, folders), patience=0)
            raise
        return Group(folders, self._share(name), self._usage, self._free)

    def _share(self, name: str) -> tuple[Path, ...]:
        """Make the group for a share of the processors; returns its folder, or nothing if that fails."""
        folders = () if self._plan.cpu is None else (self._plan.cpu.with_name(f"{self._plan.cpu.name}.{name}"),)
        try:
            for folder in folders:
                folder.mkdir()
        except OSError:
            return ()
        return folders

    def remove(self) -> None:
        """Remove all groups that the launcher has not removed. Waits for the last processes to end: call it in a thread."""
        remove_groups(group_names(self._plan.parents, self._plan.cpu))


def memory_limit(settings: SandboxSettings) -> int:
    """Return the bytes that a kernel may hold: the limit of one process, each tmpfs (workspace, /tmp, /dev/shm), headroom."""
    return (settings.memory_mb + 3 * settings.workspace_mb + _HEADROOM_MB) * _MIB
