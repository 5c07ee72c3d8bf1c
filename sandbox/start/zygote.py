"""The host's side of the zygote, which forks a kernel in milliseconds."""

import asyncio
import errno
import itertools
import json
import os
import secrets
import select
import socket
from collections.abc import Sequence

from nbrl.sandbox.errors import SandboxError
from nbrl.sandbox.settings import KernelLimits
from nbrl.sandbox.start.bubblewrap import Bubblewrap, memory_file, receive_handles
from nbrl.sandbox.start.fresh import birth_message
from nbrl.sandbox.start.kernel_process import CHANNELS, Address, KernelProcess, name_sockets, readable, unbound


class Zygote:
    """One sandbox with a prepared interpreter in it; kernels forked from it end with it."""

    def __init__(self, settings: KernelLimits, bubblewrap: Bubblewrap, control: socket.socket) -> None:
        self._settings = settings
        self._bubblewrap = bubblewrap
        self._control = control
        self._numbers = itertools.count()

    @classmethod
    async def start(cls, settings: KernelLimits, prelude: str = "") -> "Zygote":
        """Start a zygote and wait until its libraries are imported and the trusted `prelude` has run, once for all kernels."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        source = memory_file(prelude.encode())
        try:
            passed = [theirs.fileno(), source]
            bubblewrap = Bubblewrap.start("zygote", [*map(str, passed), *settings.preload], passed, settings)
        except BaseException:
            ours.close()
            raise
        finally:
            os.close(source)
            theirs.close()
        ours.setblocking(False)
        zygote = cls(settings, bubblewrap, ours)
        try:
            async with asyncio.timeout(settings.start_timeout_s):
                await readable(ours.fileno())
            if ours.recv(16) != b"ready":
                raise SandboxError(f"the zygote did not start: {bubblewrap.complaints() or 'it left no message'}")
        except BaseException as error:
            await asyncio.shield(zygote.end())
            if isinstance(error, TimeoutError):
                seconds = settings.start_timeout_s
                raise SandboxError(f"the zygote was not ready within {seconds:g} s: is the machine overloaded?") from None
            raise
        return zygote

    @property
    def alive(self) -> bool:
        """Return whether it can still fork. Its sandbox may take a moment longer to end than its end of the socket."""
        if not self._bubblewrap.running:
            return False
        hangup = select.poll()
        hangup.register(self._control, 0)
        return not hangup.poll(0)

    async def fork(self, channels: Sequence[str] = CHANNELS) -> KernelProcess:
        """Fork a clean kernel in its own namespaces, which listens on `channels`, all or the first of them."""
        settings = self._settings
        name = str(next(self._numbers))
        address = Address(self._bubblewrap.folder / name, secrets.token_hex(16).encode())
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        sockets = unbound(channels)
        try:
            name_sockets(theirs, sockets, address)
            descriptors = [sock.fileno() for sock in (theirs, *sockets)]
            async with asyncio.timeout(settings.start_timeout_s):
                await self._send(json.dumps(birth_message(address, settings)).encode(), descriptors)
                for sock in (theirs, *sockets):
                    sock.close()
                handles = await receive_handles(ours)
            if handles is None:
                complaints = self._bubblewrap.complaints() or "it left no message"
                raise SandboxError(f"the zygote could not fork a kernel: {complaints}")
            try:
                admission = await self._bubblewrap.admit(name, handles.pidfd, settings)
            except BaseException:
                handles.close()
                raise
        except BaseException as error:
            ours.close()
            address.remove()
            if isinstance(error, TimeoutError):
                raise SandboxError("the zygote forked no kernel in time: is the machine overloaded?") from None
            raise
        finally:
            for sock in (theirs, *sockets):
                sock.close()
        finish = None if admission.group is None else admission.group.leave
        return KernelProcess(address, handles, ours, admission.lacking, finish, lambda: not self.alive)

    async def _send(self, message: bytes, descriptors: list[int]) -> None:
        while True:
            try:
                socket.send_fds(self._control, [message], descriptors)
                return
            except OSError as error:
                if error.errno in (errno.EAGAIN, errno.ETOOMANYREFS):
                    # Its queue of requests or descriptors is full; it serves one every few milliseconds.
                    await asyncio.sleep(0.005)
                    continue
                complaints = self._bubblewrap.complaints() or error
                raise SandboxError(f"the zygote is gone: {complaints}") from error

    async def end(self) -> None:
        """Kill it and every kernel it forked."""
        self._control.close()
        await self._bubblewrap.end()
