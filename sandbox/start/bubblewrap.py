"""Starts a sandbox: a launcher that lets nothing outlive this process, with bubblewrap below it."""

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from nbrl.sandbox.errors import SandboxError
from nbrl.sandbox.inside import seccomp
from nbrl.sandbox.settings import KernelLimits, Protection, SandboxSettings
from nbrl.sandbox.start.kernel_process import Handles, readable
from nbrl.sandbox.walls import cgroups, interpreter, protections
from nbrl.sandbox.walls.cgroups import Group, Groups
from nbrl.sandbox.walls.filesystem import PROGRAM, bubblewrap_arguments, find_bubblewrap, python_root
from nbrl.sandbox.walls.launcher import launch_arguments


class Admission(NamedTuple):
    """The inspection of a new kernel: its control group, and the protections it lacks, each with what was found instead."""

    group: Group | None
    lacking: dict[Protection, str]


class Bubblewrap:
    """A launcher with bubblewrap below it. When its lifeline is closed, or this process ends, everything inside ends at once.

    `folder` is for socket names and `groups` for the control groups of kernels, None if none can be made. Both are removed
    when everything inside has ended, by this process or the launcher, whichever lives longer.
    """

    def __init__(
        self, process: subprocess.Popen[bytes], lifeline: int, folder: Path, groups: Groups | None, complaints: int
    ) -> None:
        self.folder = folder
        self.groups = groups
        self._process = process
        self._lifeline: int | None = lifeline
        self._complaints = complaints

    @classmethod
    def start(cls, module: str, arguments: list[str], keep: list[int], settings: KernelLimits) -> "Bubblewrap":
        """Run `module` of `nbrl.sandbox.inside` in a sandbox that inherits the descriptors `keep` and nothing else."""
        code = _filter(settings)
        root = python_root(interpreter.for_kernels(settings))
        folder = Path(tempfile.gettempdir(), f"nbrl-{secrets.token_hex(8)}")
        before, after = bubblewrap_arguments(root, settings, nested=module == "zygote")
        before.insert(0, find_bubblewrap())
        plan = cgroups.plan(folder.name)
        watch, lifeline = os.pipe()
        complaints = os.memfd_create("complaints")
        passed = [watch, *keep]
        try:
            passed.append(memory_file(code))
            if module == "zygote":
                # The zygote's children install the filter themselves, after they have made their namespaces.
                arguments = [str(passed[-1]), *arguments]
            elif code:
                before += ["--seccomp", str(passed[-1])]
            spec = {
                "parent": os.getpid(),
                "lifeline": watch,
                "folder": str(folder),
                "groups": [str(parent) for parent in plan.parents],
                "cpu": None if plan.cpu is None else str(plan.cpu),
                "binds": [*root.binds, *([(settings.program, PROGRAM)] if settings.program else [])],
                "before": before,
                "after": [*after, *root.python, f"nbrl.sandbox.inside.{module}", *arguments],
                "keep": passed[1:],
                "uid": settings.unprivileged_uid if os.geteuid() == 0 else None,
            }
            process = subprocess.Popen(
                [*launch_arguments(), json.dumps(spec)],
                pass_fds=passed,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=complaints,
                env={},
            )
        except OSError as error:
            os.close(lifeline)
            os.close(complaints)
            raise SandboxError(f"the sandbox launcher did not start: {error}") from error
        finally:
            for descriptor in {*passed} - {*keep}:
                os.close(descriptor)
        bubblewrap = cls(process, lifeline, folder, None, complaints)
        try:
            # Only now, when the launcher exists and will remove it even if this process is killed.
            folder.mkdir(mode=0o700)
            bubblewrap.groups = _groups(plan, settings)
        except BaseException as error:
            os.close(lifeline)
            process.wait()
            os.close(complaints)
            if isinstance(error, OSError):
                raise SandboxError(f"there is no place for a sandbox's sockets: {error}") from error
            raise
        return bubblewrap

    @property
    def running(self) -> bool:
        """Return whether something still runs inside."""
        return self._lifeline is not None and self._process.poll() is None

    @property
    def killed(self) -> bool:
        """Return whether its launcher was killed, instead of ending with what ran inside."""
        return (self._process.poll() or 0) < 0

    def complaints(self) -> str:
        """Return the stderr output before the first cell, which says why a start failed."""
        size = os.fstat(self._complaints).st_size
        return os.pread(self._complaints, 2000, max(0, size - 2000)).decode(errors="replace").strip()

    async def admit(self, name: str, pidfd: int, settings: SandboxSettings) -> Admission:
        """Put a new kernel into its own control group and inspect its protections, before it runs a cell.

        Raises SandboxUnavailable if a required protection is missing; a kernel that is not admitted is killed.
        """
        group: Group | None = None

        def work() -> dict[Protection, str]:
            nonlocal group
            if self.groups is not None:
                group = self.groups.admit(protections.pid_of(pidfd), name)
            return protections.lacking(pidfd, group)

        # In a thread, because moving a process waits for the machine's RCU.
        task = asyncio.ensure_future(asyncio.to_thread(work))
        try:
            lacking = await asyncio.shield(task)
            protections.demand(settings, lacking)
        except BaseException as error:
            await asyncio.wait([task])
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            if group is not None:
                await asyncio.shield(group.leave())
            if isinstance(error, OSError):
                raise SandboxError(f"no control group could be made for a kernel, or it ended: {error}") from error
            raise
        return Admission(group, lacking)

    async def end(self) -> None:
        """Kill everything inside and wait for it."""
        if self._lifeline is None:
            return
        os.close(self._lifeline)
        self._lifeline = None
        if self._process.poll() is None:
            pidfd = os.pidfd_open(self._process.pid)
            try:
                await readable(pidfd)
            finally:
                os.close(pidfd)
        self._process.wait()
        os.close(self._complaints)
        # The launcher has removed these unless it was killed.
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.groups is not None:
            await asyncio.to_thread(self.groups.remove)


def _filter(settings: KernelLimits) -> bytes:
    """Return the system call filter; empty if the machine has none and none is required."""
    try:
        return seccomp.program(settings.loopback)
    except OSError as error:
        if "seccomp" in settings.require:
            raise protections.refusal("seccomp", error.strerror or str(error)) from error
        return b""


def _groups(plan: cgroups.CgroupPlan, settings: SandboxSettings) -> Groups | None:
    try:
        return Groups.make(plan, settings)
    except OSError as error:
        if "cgroups" in settings.require:
            raise protections.refusal("cgroups", str(error)) from error
        return None


def memory_file(data: bytes) -> int:
    """Write `data` to an unnamed file, to be inherited and read inside; returns its descriptor."""
    descriptor = os.memfd_create("nbrl")
    os.write(descriptor, data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


async def receive_handles(channel: socket.socket) -> Handles | None:
    """Receive the first message of a new process on its channel; None if the process ended instead."""
    channel.setblocking(False)
    await readable(channel.fileno())
    try:
        _, descriptors, flags, _ = socket.recv_fds(channel, 1, 2)
    except ConnectionError:
        return None
    if flags & socket.MSG_CTRUNC:
        for descriptor in descriptors:
            os.close(descriptor)
        raise SandboxError("this process has no descriptors left for a new kernel: raise its limit (ulimit -n)")
    return Handles(*descriptors) if descriptors else None
