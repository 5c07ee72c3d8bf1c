"""Outputs that the thread which makes them sends itself.

Stock ipykernel passes every message to its IOPub thread and waits for it at each flush: most of a small cell's time is those
threads waking each other. Here that thread serves only what must go on while a cell runs: the descriptors, output that waits to
be flushed and, for Jupyter's clients, subscriptions, control and the heartbeat.
"""

import asyncio
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import zmq
from ipykernel.iostream import BackgroundSocket, IOPubThread
from zmq.eventloop.zmqstream import ZMQStream

from nbrl.sandbox.inside.channel import Uninterrupted
from nbrl.sandbox.inside.line import Line
from nbrl.sandbox.inside.streams import CapturedStream
from nbrl.sandbox.inside.watch import Watch

_MORE = int(zmq.SNDMORE)


class Publisher(IOPubThread):
    """Its socket is used by one thread at a time, under a lock; an interrupt waits, so that no message is cut in two."""

    _sender: int | None = None  # the thread that is sending

    def __init__(self) -> None:
        self._lock = threading.Lock()

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Flush or send inside this block, so that what was taken first is sent first."""
        if self._sender == threading.get_ident():
            yield
            return
        with Uninterrupted(), self._lock:
            self._sender = threading.get_ident()
            try:
                yield
                self._sent()
            finally:
                self._sender = None

    def _sent(self) -> None:
        """Note that something was sent just now."""

    def settled(self) -> None:
        """Return when no other thread is in the middle of sending."""
        with self._lock:
            pass

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        """Call it in this thread after some seconds."""
        raise NotImplementedError

    def schedule(self, f: Callable[[], Any]) -> None:
        # In a forked child the lock may be held by no thread, and the socket is dead.
        if os.getpid() == self._master_pid:
            with self.sending():
                f()


class LinePublisher(Publisher):
    """To nbrl's own client. Its thread sleeps until a descriptor has text or output has waited for long enough."""

    io_loop: Any  # a Watch, where stock threads have a loop of tornado

    def __init__(self, descriptor: int, session: Any) -> None:
        super().__init__()
        # Instead of what the stock thread makes: a loop, and sockets between the threads.
        self.socket, self.session, self.io_loop = Line(descriptor, "XPUB", self._subscribed), session, Watch()
        self.background_socket = BackgroundSocket(self)
        self._master_pid = os.getpid()
        self.thread = threading.Thread(target=self.io_loop.run, name="IOPub", daemon=True)

    def start(self) -> None:
        self.socket.serve(asyncio.get_event_loop())
        self.thread.start()

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        self.io_loop.later(seconds, call)

    def _subscribed(self, frames: list[bytes]) -> None:
        with self.sending():
            self._handle_subscription(frames)

    def _really_send(self, msg: list[bytes], *_: Any, **__: Any) -> None:
        self.socket.send_multipart(msg)


class SocketPublisher(Publisher):
    """To Jupyter's clients, by libzmq. Its thread also serves subscriptions, control and the heartbeat."""

    def __init__(self, sock: "zmq.Socket[bytes]", session: Any) -> None:
        super().__init__()
        # No pipe from forked children: they write to the captured descriptors.
        IOPubThread.__init__(self, sock, pipe=False, session=session)

    def _sent(self) -> None:
        # Sending takes in what came for the socket; the loop would not report it again.
        if self.socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:
            self.io_loop.add_callback(self._subscriptions)

    def later(self, seconds: float, call: Callable[[], None]) -> None:
        self.io_loop.add_callback(self.io_loop.call_later, seconds, call)

    def _really_send(self, msg: list[bytes], *_: Any, **__: Any) -> None:
        send = self.socket.send
        for part in msg[:-1]:
            send(part, _MORE)
        send(msg[-1], 0)

    def _setup_event_pipe(self) -> None:
        """Do nothing: the thread gets no messages."""

    def _setup_xpub_listener(self) -> None:
        self.io_loop.add_handler(self.socket.FD, self._subscriptions, self.io_loop.READ)

    def _subscriptions(self, *_: int) -> None:
        with self._lock:
            while self.socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:
                self._handle_subscription(self.socket.recv_multipart(zmq.NOBLOCK))

    def _thread_main(self) -> None:
        self.io_loop.start()


class DirectStream(CapturedStream):
    """A stream that flushes in the thread that calls `flush`."""

    pub_thread: Publisher

    def _schedule_flush(self) -> None:
        if self._flush_pending:
            return
        self._flush_pending = True
        self.pub_thread.later(self.flush_interval, self._late)

    def _late(self) -> None:
        self._flush_pending = False
        self._flush()

    def flush(self) -> None:
        if not self.forked:
            self._flush()

    def _flush(self) -> None:
        self._take()
        if not self._buffers:
            self.pub_thread.settled()
            return
        waiting = self._flush_pending
        with self.pub_thread.sending():
            super()._flush()
        # The timer goes on: it is set once for many flushes.
        self._flush_pending = waiting


class DirectReplies(ZMQStream):
    """A stream that sends messages at once, not a turn of the loop later."""

    def send_multipart(self, msg: Sequence[Any], *_: Any, **__: Any) -> None:
        self.socket.send_multipart(msg)
        # Sending takes in what came for the socket; the loop would not report it again.
        self._rebuild_io_state()

    def flush(self, *_: Any, **__: Any) -> int:
        return 0
