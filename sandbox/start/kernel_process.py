"""The host's handle of a kernel's process, however it was started: sockets, key, tool channel, pidfd."""

import asyncio
import contextlib
import os
import signal
import socket
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, cast

from jupyter_client.connect import KernelConnectionInfo

from nbrl.sandbox.errors import SandboxError
from nbrl.sandbox.settings import Protection

CHANNELS = ("shell", "iopub", "stdin", "control", "hb")
OWN_CHANNELS = CHANNELS[:2]
"""The channels of nbrl's own client; the others are for Jupyter's clients."""


@dataclass(frozen=True)
class Address:
    """The sockets of a kernel and the key that signs its messages. The sockets lie in a folder only the host can enter."""

    prefix: Path
    key: bytes

    def of(self, channel: str) -> str:
        """Return the ZeroMQ address of one of the five channels."""
        return f"ipc://{self.prefix}-{CHANNELS.index(channel) + 1}"

    def remove(self) -> None:
        """Remove the sockets' names; existing connections stay."""
        for number in range(len(CHANNELS) + 1):
            Path(f"{self.prefix}-{number}").unlink(missing_ok=True)

    def connection_info(self) -> KernelConnectionInfo:
        """Return the address in the format of a Jupyter connection file."""
        ports = {f"{name}_port": number for number, name in enumerate(CHANNELS, start=1)}
        info = {"transport": "ipc", "ip": str(self.prefix), "key": self.key, "kernel_name": "python3"}
        return cast(KernelConnectionInfo, {**info, "signature_scheme": "hmac-sha256", **ports})


def unbound(channels: Sequence[str] = CHANNELS) -> list[socket.socket]:
    """Return a kernel's listening sockets, without names yet."""
    return [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in channels]


def name_sockets(channel: socket.socket, sockets: list[socket.socket], address: Address) -> None:
    """Bind a kernel's end of its tool channel, and the sockets it will listen on, to names.

    The host makes them, so that the kernel needs no folder to bind in. They therefore belong to the host's network namespace,
    where a cell could bind an unnamed one to any abstract name that a service of the host may want.
    """
    for number, sock in enumerate((channel, *sockets)):
        try:
            sock.bind(f"{address.prefix}-{number}")
        except OSError as error:
            folder = tempfile.gettempdir()
            raise SandboxError(f"no kernel's socket can be made below {folder}: {error}; set TMPDIR to a short path") from error
    for sock in sockets:
        sock.listen(16)
        # libzmq accepts only after poll; a client gone in between must not block its I/O thread.
        sock.setblocking(False)


async def readable(descriptor: int) -> None:
    """Return when `descriptor` is readable; for a pidfd that is when its process has ended."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def ready() -> None:
        if not done.done():
            done.set_result(None)

    loop.add_reader(descriptor, ready)
    try:
        await done
    finally:
        loop.remove_reader(descriptor)


class Handles(NamedTuple):
    """Descriptors that a kernel sent of itself before any cell ran, so that they cannot refer to anything else."""

    pidfd: int
    workspace: int

    def close(self) -> None:
        for descriptor in self:
            os.close(descriptor)


class KernelProcess:
    """Owns the host's resources of one kernel; `end` releases all of them and may be called twice.

    `lacking` names its missing protections, each with what was found instead; `finish` ends further resources of its own; `lost`
    says, once the kernel has ended, whether its sandbox had ended too.
    """

    def __init__(
        self,
        address: Address,
        handles: Handles,
        channel: socket.socket,
        lacking: Mapping[Protection, str],
        finish: Callable[[], Awaitable[None]] | None,
        lost: Callable[[], bool],
    ) -> None:
        self.address = address
        self.channel = channel
        self.lacking = lacking
        self.lost = lost
        self.workspace = handles.workspace
        self._handles = handles
        self._pidfd = handles.pidfd
        self._finish = finish
        self._ended = False
        self._ending: asyncio.Task[None] | None = None
        self.gone = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._pidfd, self._on_exit)

    def _on_exit(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        self.gone.set()

    def send_signal(self, number: int) -> None:
        """Send a signal to the kernel; does nothing if it has ended."""
        if not self._ended:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    async def end(self) -> None:
        """Kill the kernel and everything it started, and wait until they have ended; cancelling the wait does not stop this."""
        if self._ending is None:
            self._ending = asyncio.create_task(self._end())
        await asyncio.shield(self._ending)

    async def _end(self) -> None:
        self.send_signal(signal.SIGKILL)
        self._ended = True
        try:
            await self.gone.wait()
            if self._finish is not None:
                await self._finish()
        finally:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            self.gone.set()
            self._handles.close()
            self.channel.close()
            self.address.remove()
