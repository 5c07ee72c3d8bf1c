"""An ipykernel on listening sockets that the host made and passed on; nothing is bound, written or read inside."""

import asyncio
import builtins
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import zmq
from ipykernel.iostream import IOPubThread
from ipykernel.kernelapp import IPKernelApp
from jupyter_client.connect import KernelConnectionInfo
from traitlets.config import Config

from nbrl.sandbox.inside.channel import Channel
from nbrl.sandbox.inside.children import restore_in_children
from nbrl.sandbox.inside.nested import allow_nested_runs
from nbrl.sandbox.inside.shell import outlive_tasks


def configuration() -> Config:
    """Return IPython as a half-trained model needs it: no colours, no history database, no start-up files."""
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    config.InteractiveShell.banner1 = ""
    config.BaseIPythonApplication.auto_create = False
    config.IPKernelApp.exec_PYTHONSTARTUP = False
    return config


@contextmanager
def no_debugger() -> Iterator[None]:
    """Let ipykernel believe that debugpy is not installed: no client can reach it, and it takes a third of the start."""
    sys.modules["debugpy"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["debugpy"]


def install_host_call(channel: Channel) -> None:
    """Make `host_call(name, arguments)` a builtin of the kernel."""

    def host_call(name: str, arguments: dict[str, Any] | None = None) -> Any:
        """Run a tool outside the sandbox and return its answer; RuntimeError when it refuses or fails."""
        try:
            return channel.call(name, arguments or {})
        except RuntimeError as error:
            # The model sees its own line and the reason, not how the channel works.
            raise error.with_traceback(None) from None

    builtins.host_call = host_call  # type: ignore[attr-defined]


def announce(sock: socket.socket, workspace: str) -> None:
    """Send the host a pidfd of this process and its workspace folder, then stop writing to the host's stderr.

    Call it before the limits bind: descriptors in flight are counted for all kernels' one user, and a process may send none while
    that user has more than its limit in flight.
    """
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    handles = [os.pidfd_open(os.getpid()), os.open(workspace, os.O_PATH | os.O_DIRECTORY)]
    socket.send_fds(sock, [b"\1"], handles)
    for handle in handles:
        os.close(handle)
    silence = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(silence, descriptor)
    os.close(silence)


def adopt(sock: "zmq.Socket[Any]", descriptor: int) -> None:
    """Let `sock` serve a listening socket that the host made.

    Outputs wait when the client is slow, where stock kernels queue a thousand and then drop: memory is short here, and the
    message that says a cell is done must arrive.
    """
    if sock.type == zmq.XPUB:
        sock.setsockopt(zmq.SNDHWM, 64)
        sock.setsockopt(zmq.XPUB_NODROP, 1)
    sock.setsockopt(zmq.USE_FD, descriptor)
    sock.bind(f"ipc://adopted-{descriptor}")


def wake_on_signals(loop: asyncio.AbstractEventLoop) -> None:
    """Let a signal wake the event loop, which else sleeps on: an interrupt would not reach an awaiting cell."""
    ours, theirs = socket.socketpair()
    for sock in (ours, theirs):
        sock.setblocking(False)
    signal.set_wakeup_fd(theirs.detach(), warn_on_full_buffer=False)

    loop.add_reader(ours, ours.recv, 4096)


class AdoptingKernelApp(IPKernelApp):
    """IPKernelApp whose sockets adopt descriptors; `adopt` and `connection` are set before `initialize`."""

    adopt: dict[int, int]
    connection: KernelConnectionInfo

    def init_connection_file(self) -> None:
        self.load_connection_info(self.connection)

    def write_connection_file(self, **kwargs: Any) -> None:
        """Do nothing: there is no connection file inside."""

    def cleanup_connection_file(self) -> None:
        """Do nothing: there is nothing to remove."""

    def _try_bind_socket(self, s: "zmq.Socket[Any]", port: int) -> int:
        adopt(s, self.adopt[port])
        return port

    def init_iopub(self, context: "zmq.Context[Any]") -> None:
        """Start the stock thread without its TCP pipe from forked children: they write to the captured descriptors."""
        sock = context.socket(zmq.XPUB)
        sock.linger = 1000
        self.iopub_port = self._bind_socket(sock, self.iopub_port)
        self.iopub_thread = IOPubThread(sock, pipe=False, session=self.session)
        self.iopub_thread.start()
        self.iopub_socket = self.iopub_thread.background_socket

    def init_heartbeat(self) -> None:
        """Start the stock heartbeat thread, on an adopted socket."""
        port, descriptor = self.hb_port, self.adopt[self.hb_port]

        from ipykernel.heartbeat import Heartbeat

        class AdoptingHeartbeat(Heartbeat):
            def _try_bind_socket(self) -> None:
                adopt(self.socket, descriptor)

        self.heartbeat = AdoptingHeartbeat(zmq.Context(), (self.transport, self.ip, port))
        self.heartbeat.start()

    def start(self) -> None:
        loop = asyncio.get_event_loop()
        wake_on_signals(loop)
        restore_in_children(self.session, loop)
        outlive_tasks(loop)
        allow_nested_runs(loop)
        super().start()
