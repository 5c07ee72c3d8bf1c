"""An IPython kernel built in two steps: everything that needs no socket and no thread before the fork, the rest after.

It leans on parts of ipykernel that are not its public interface; a test names them, so that an update which moves them
is noticed.
"""

import asyncio
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import IPython.core.logger  # noqa: F401  (both are else imported in every kernel)
import tornado.platform.asyncio  # noqa: F401
import traitlets
import zmq
from ipykernel.ipkernel import IPythonKernel
from ipykernel.thread import make_selector_io_loop
from ipykernel.utils import _async_in_context
from jupyter_client.session import Session
from tornado import ioloop
from traitlets.config import Application
from zmq.eventloop.zmqstream import ZMQStream

from nbrl.sandbox.inside.adopted_kernel import adopt, configuration, no_debugger, wake_on_signals
from nbrl.sandbox.inside.cell_source import CellSource
from nbrl.sandbox.inside.children import allow_forks, end_child, restore_in_children
from nbrl.sandbox.inside.displays import bound_messages
from nbrl.sandbox.inside.line import ShellLine
from nbrl.sandbox.inside.nested import allow_nested_runs
from nbrl.sandbox.inside.publisher import DirectReplies, DirectStream, LinePublisher, Publisher, SocketPublisher
from nbrl.sandbox.inside.shell import adjust, outlive_tasks


class _NoShellThread:
    """Replaces the shell channel thread of stock ipykernel. There is none, but ipykernel reads its parent thread."""

    parent_thread = threading.main_thread()

    def __bool__(self) -> bool:
        return False


class _Nowhere:
    """A socket that takes everything and sends nothing."""

    def send_multipart(self, *_: object, **__: object) -> None:
        """Drop the message."""


def _rehearse_messages() -> None:
    """Send a message to ourselves: what libzmq and the loops resolve and allocate the first time need not be in every kernel.

    No thread is left when the context has ended.
    """
    make_selector_io_loop().close()
    with zmq.Context() as context, context.socket(zmq.XPUB) as server, context.socket(zmq.SUB) as client:
        server.bind("ipc://*")
        client.connect(server.getsockopt_string(zmq.LAST_ENDPOINT))
        client.subscribe(b"")
        server.recv()
        server.send_multipart([b"message"] * 6)
        client.recv_multipart()


class ForkedKernel(IPythonKernel):
    """A kernel without subshells and debugger: its main thread reads the shell channel itself.

    Threads cost a fork dear, so there is one beside the main thread: IOPub, which also serves control and the heartbeat.
    """

    # Never None here, which the stock traits allow.
    session: Session
    shell: Any
    control_stream: ZMQStream
    shell_stream = traitlets.Any()  # stock kernels allow a stream of libzmq only

    _source: CellSource

    _supports_kernel_subshells = False
    _to_jupyter = False
    """Whether the clients are Jupyter's, not nbrl's own."""

    @contextmanager
    def _cancel_on_sigint(self, future: Any) -> Iterator[None]:
        """Let the first interrupt cancel an asynchronous cell, as in stock ipykernel, and the next ones be raised in it: one that
        computes does not turn its loop, and cannot be cancelled.
        """
        with super()._cancel_on_sigint(future):
            cancel: Any = signal.getsignal(signal.SIGINT)
            asked = False

            def interrupt(number: int, frame: Any) -> None:
                nonlocal asked
                if asked:
                    raise KeyboardInterrupt
                asked = True
                cancel(number, frame)

            signal.signal(signal.SIGINT, interrupt)
            yield

    @classmethod
    def prepare(cls, prelude: str = "") -> "ForkedKernel":
        """Return the kernel as far as it can be shared: the shell, its history off, its error and display paths warm, what the
        trusted `prelude` defines. Raises RuntimeError when the prelude fails.
        """
        config = configuration()
        config.Kernel._execute_sleep = 0.0
        session = Session(config=config, key=b"replaced after the fork")
        log = logging.getLogger("kernel")
        log.addHandler(logging.NullHandler())
        log.propagate = False
        parts = {"session": session, "shell_channel_thread": _NoShellThread(), "log": log, "user_ns": None}
        with no_debugger():
            kernel: ForkedKernel = cls.instance(config=config, **parts)
        # Stock kernels belong to an application, which is asked for its kernel by `%matplotlib`.
        Application.instance().kernel = kernel  # type: ignore[attr-defined]
        os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        kernel._source = CellSource(kernel.shell)
        adjust(kernel.shell)
        kernel._rehearse()
        allow_forks()
        done = kernel.shell.run_cell(prelude, silent=True)
        if not done.success:
            raise RuntimeError(f"the prelude failed: {done.error_before_exec or done.error_in_exec!r}")
        _rehearse_messages()
        return kernel

    def _rehearse(self) -> None:
        """Run cells into the void: what is imported, compiled and specialised here need not be in every kernel."""
        shell, session, nowhere = self.shell, self.session, _Nowhere()
        fresh = dict(shell.user_ns)
        self.iopub_socket = shell.displayhook.pub_socket = shell.display_pub.pub_socket = self.shell_stream = nowhere
        for code in ("import math", "print(math.pi)", "[math.sqrt(n) for n in range(9)]", "1 / 0"):
            content = {"code": code, "silent": False, "stop_on_error": False, "user_expressions": {"pi": "math.pi"}}
            for _ in range(3):
                request = session.serialize(session.msg("execute_request", content))
                asyncio.run(self.shell_main(None, [zmq.Frame(part) for part in request]))
        shell.reset(new_session=True)
        shell.execution_count = 1
        shell.displayhook._ = shell.displayhook.__ = shell.displayhook.___ = ""
        # A reset takes more away than a fresh shell lacks: __spec__, the last results.
        shell.user_ns.update({name: value for name, value in fresh.items() if name not in shell.user_ns})

    def connect(self, birth: dict[str, Any], adopted: list[int]) -> None:
        """Adopt the listening sockets: shell, iopub and, for Jupyter's clients, stdin, control, heartbeat. Once a fork.

        `birth` is the host's first message.
        """
        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        session = self.session
        session.key = birth["connection"]["key"].encode()
        session.pid = os.getpid()
        session.session = os.urandom(16).hex()
        shell, iopub, *others = adopted
        self._to_jupyter = bool(others)
        if others:
            self.shell_stream, thread = self._by_libzmq(shell, iopub, *others)
        else:
            self.shell_stream, thread = ShellLine(shell), LinePublisher(iopub, session)
        self.iopub_thread = thread
        self.iopub_socket = thread.background_socket
        self.shell.displayhook.pub_socket = self.iopub_socket
        self.shell.display_pub.pub_socket = self.iopub_socket
        sys.stdout = self._stdout = DirectStream(session, thread, "stdout")
        sys.stderr = self._stderr = DirectStream(session, thread, "stderr")
        bound_messages(session, birth["message_chars"], birth["picture_bytes"], birth["message_bytes"])
        restore_in_children(session, self._loop)

    def _by_libzmq(self, shell: int, iopub: int, stdin: int, control: int, heartbeat: int) -> tuple[DirectReplies, Publisher]:
        """Return the stream of the shell channel and the thread of the others."""
        context = zmq.Context()

        def serve(kind: int, descriptor: int) -> "zmq.Socket[Any]":
            sock = context.socket(kind)
            sock.linger = 1000
            adopt(sock, descriptor)
            return sock

        thread = SocketPublisher(serve(zmq.XPUB, iopub), self.session)
        self.stdin_socket = serve(zmq.ROUTER, stdin)
        # asyncio locks bind to the loop that first waits on them, here the IOPub thread's.
        self._control_lock = asyncio.Lock()
        self.control_stream = ZMQStream(serve(zmq.ROUTER, control), thread.io_loop)
        self.control_stream.on_recv(self.dispatch_control, copy=False)
        echo = ZMQStream(serve(zmq.ROUTER, heartbeat), thread.io_loop)
        echo.on_recv(echo.send_multipart)
        return DirectReplies(serve(zmq.ROUTER, shell), ioloop.IOLoop.current()), thread

    def _publish_status(self, status: str, *rest: Any, **named: Any) -> None:
        """Do nothing: nbrl's client waits for the end of a request only."""
        if status == "idle" or self._to_jupyter:
            super()._publish_status(status, *rest, **named)

    def _publish_execute_input(self, *arguments: Any) -> None:
        """Do nothing: nbrl's client knows what it sent."""
        if self._to_jupyter:
            super()._publish_execute_input(*arguments)

    @property
    def io_loop(self) -> ioloop.IOLoop:  # type: ignore[override]  # stock kernels assign it
        """Return tornado's interface to the loop, which few parts of stock kernels need; it costs a fork more than the loop."""
        return ioloop.IOLoop.current()

    async def execute_request(self, stream: Any, ident: Any, parent: dict[str, Any]) -> None:
        """Run a request; answer also an interrupt in the moments before and after the code, where stock kernels do not."""
        self._source.begin()
        try:
            await super().execute_request(stream, ident, parent)
        except KeyboardInterrupt:
            content = {"status": "error", "ename": "KeyboardInterrupt", "evalue": "", "traceback": []}
            self.session.send(stream, "execute_reply", content, parent, ident=ident)

    def start(self) -> None:
        """Begin to read; the stock method would set up subshells and the debugger."""
        self.shell_stream.on_recv(_async_in_context(partial(self.shell_main, None)), copy=False)
        self.iopub_thread.start()
        wake_on_signals(self._loop)
        outlive_tasks(self._loop)
        allow_nested_runs(self._loop)
        self._loop.run_forever()
        end_child()
