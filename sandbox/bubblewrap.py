"""Start one program inside bubblewrap, under a launcher that lets nothing outlive this process."""

import asyncio
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from sandbox.errors import SandboxError
from sandbox.inside import seccomp
from sandbox.inside.channel import frame
from sandbox.process import Address, Handles, KernelProcess, listen, readable, unbound
from sandbox.root import WORKSPACE, bubblewrap_arguments, find_bubblewrap, python_root
from sandbox.settings import SandboxSettings


class Confined:
    """A launcher with bubblewrap below it. Closing its lifeline, or our end, ends everything inside within moments.

    `folder` is for socket names; it goes when everything inside has ended, by whichever of us lives longer.
    """

    def __init__(self, process: subprocess.Popen[bytes], lifeline: int, folder: Path, complaints: int) -> None:
        self.folder = folder
        self._process = process
        self._lifeline: int | None = lifeline
        self._complaints = complaints

    @classmethod
    def start(cls, module: str, arguments: list[str], keep: list[int], settings: SandboxSettings) -> "Confined":
        """Run `module` of `sandbox.inside` in a sandbox that inherits the descriptors `keep` and nothing else."""
        root = python_root()
        folder = Path(tempfile.gettempdir(), f"nbrl-{secrets.token_hex(8)}")
        before, after = bubblewrap_arguments(root, settings, nested=module == "zygote")
        before.insert(0, find_bubblewrap())
        watch, lifeline = os.pipe()
        complaints = os.memfd_create("complaints")
        passed = [watch, *keep]
        try:
            if module != "zygote":
                # The zygote's children put the filter on themselves, after they have made their namespaces.
                passed.append(_filter_file())
                before += ["--seccomp", str(passed[-1])]
            spec = {
                "parent": os.getpid(),
                "lifeline": watch,
                "folder": str(folder),
                "binds": root.binds,
                "before": before,
                "after": [*after, *root.python, f"sandbox.inside.{module}", *arguments],
                "keep": passed[1:],
                "uid": settings.unprivileged_uid if os.geteuid() == 0 else None,
            }
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(Path(__file__).parent / "launcher.py"), json.dumps(spec)],
                pass_fds=passed,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=complaints,
                env={},
            )
            # Only now, when the launcher is there to remove it, whatever becomes of us.
            folder.mkdir(mode=0o700)
        except OSError as error:
            os.close(lifeline)
            os.close(complaints)
            raise SandboxError(f"the sandbox launcher did not start: {error}") from error
        finally:
            for descriptor in {*passed} - {*keep}:
                os.close(descriptor)
        return cls(process, lifeline, folder, complaints)

    @property
    def running(self) -> bool:
        """Whether something still runs inside."""
        return self._lifeline is not None and self._process.poll() is None

    def complaints(self) -> str:
        """What was written to stderr before the first cell: why it did not start."""
        size = os.fstat(self._complaints).st_size
        return os.pread(self._complaints, 2000, max(0, size - 2000)).decode(errors="replace").strip()

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
        shutil.rmtree(self.folder, ignore_errors=True)


def _filter_file() -> int:
    """The system call filter as a file for bubblewrap to read."""
    descriptor = os.memfd_create("filter")
    os.write(descriptor, seccomp.program())
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


async def receive_handles(channel: socket.socket) -> Handles | None:
    """What a new process sends as the first message on its channel; None when it ended instead."""
    channel.setblocking(False)
    await readable(channel.fileno())
    try:
        _, descriptors, _, _ = socket.recv_fds(channel, 1, 2)
    except ConnectionError:
        return None
    return Handles(*descriptors) if descriptors else None


async def start_kernel(settings: SandboxSettings) -> KernelProcess:
    """A fresh interpreter with a stock ipykernel in its own bubblewrap."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    sockets = unbound()
    try:
        numbers = [sock.fileno() for sock in (theirs, *sockets)]
        confined = Confined.start("cold", [str(number) for number in numbers], numbers, settings)
        address = Address(confined.folder / "k", secrets.token_hex(16).encode())
        try:
            listen(sockets, address)
        except BaseException:
            await asyncio.shield(confined.end())
            raise
    except BaseException:
        ours.close()
        raise
    finally:
        for sock in (theirs, *sockets):
            sock.close()
    try:
        ours.sendall(frame(birth_message(address, settings)))
        async with asyncio.timeout(settings.start_timeout_s):
            handles = await receive_handles(ours)
        if handles is None:
            raise SandboxError(f"no kernel came up in bubblewrap: {confined.complaints() or 'it left no message'}")
        return KernelProcess(address, handles, ours, confined.end)
    except BaseException as error:
        ours.close()
        await asyncio.shield(confined.end())
        if isinstance(error, TimeoutError):
            seconds = settings.start_timeout_s
            raise SandboxError(f"no kernel came up in bubblewrap within {seconds:g} s: is the machine overloaded?") from None
        raise


def birth_message(address: Address, settings: SandboxSettings) -> dict[str, Any]:
    """What a kernel is told before anything else. It holds no secret but the kernel's own key."""
    mib = 1024 * 1024
    return {
        "connection": {**address.connection_info(), "key": address.key.decode()},
        "limits": {
            "memory": settings.memory_mb * mib,
            "processes": settings.max_processes,
            "files": settings.max_open_files,
            "file_bytes": settings.file_mb * mib,
            "workspace_bytes": settings.workspace_mb * mib,
            "inodes": settings.workspace_files,
        },
        "workspace": WORKSPACE,
        "call_bytes": settings.call_bytes,
        # Twice what is kept, so that what is cut here is never missed there.
        "message_chars": 2 * settings.output_bytes,
    }
