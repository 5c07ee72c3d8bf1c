"""Starts a fresh kernel: a new interpreter in its own bubblewrap, without a zygote."""

import asyncio
import secrets
import socket
from typing import Any

from nbrl.sandbox.errors import SandboxError
from nbrl.sandbox.inside.channel import frame
from nbrl.sandbox.settings import KernelLimits
from nbrl.sandbox.start.bubblewrap import Bubblewrap, receive_handles
from nbrl.sandbox.start.kernel_process import Address, KernelProcess, name_sockets, unbound
from nbrl.sandbox.walls.filesystem import WORKSPACE


async def start_kernel(settings: KernelLimits) -> KernelProcess:
    """Start a fresh interpreter with a stock ipykernel in its own bubblewrap."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    sockets = unbound()
    try:
        numbers = [sock.fileno() for sock in (theirs, *sockets)]
        bubblewrap = Bubblewrap.start("fresh", [str(number) for number in numbers], numbers, settings)
        address = Address(bubblewrap.folder / "k", secrets.token_hex(16).encode())
        try:
            name_sockets(theirs, sockets, address)
        except BaseException:
            await asyncio.shield(bubblewrap.end())
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
            raise SandboxError(f"no kernel came up in bubblewrap: {bubblewrap.complaints() or 'it left no message'}")
        try:
            admission = await bubblewrap.admit("k", handles.pidfd, settings)
        except BaseException:
            handles.close()
            raise
        return KernelProcess(address, handles, ours, admission.lacking, bubblewrap.end, lambda: bubblewrap.killed)
    except BaseException as error:
        ours.close()
        await asyncio.shield(bubblewrap.end())
        if isinstance(error, TimeoutError):
            seconds = settings.start_timeout_s
            raise SandboxError(f"no kernel came up in bubblewrap within {seconds:g} s: is the machine overloaded?") from None
        raise


def birth_message(address: Address, settings: KernelLimits) -> dict[str, Any]:
    """Return the first message to a kernel. Its only secret is the kernel's own key."""
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
        "loopback": settings.loopback,
        "workspace": WORKSPACE,
        "call_bytes": settings.call_bytes,
        # Twice what the host keeps, so that a cut in the kernel never removes what the host would keep.
        "message_chars": 2 * settings.output_bytes,
        "picture_bytes": 4 * -(-settings.image_bytes // 3) + 4,  # in base64
        "message_bytes": settings.message_bytes - 65536,  # with some words around it
    }
