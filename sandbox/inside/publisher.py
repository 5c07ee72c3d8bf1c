"""Outputs that the thread which makes them sends itself.

Stock ipykernel hands every message to its IOPub thread and waits for it at each flush: most of a small cell's time is those
threads waking each other. Here that thread serves only what must go on while a cell runs: subscriptions, control, the
heartbeat, the descriptors, output that waits to be flushed.
"""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import zmq
from ipykernel.iostream import IOPubThread
from zmq.eventloop.zmqstream import ZMQStream

from nbrl.sandbox.inside.channel import Uninterrupted
from nbrl.sandbox.inside.streams import CapturedStream

_MORE = int(zmq.SNDMORE)


class Publisher(IOPubThread):
    """Its socket is used by one thread at a time, under a lock; an interrupt waits, so that no message is cut in two."""

    def __init__(self, sock: "zmq.Socket[bytes]", session: Any) -> None:
        self._lock = threading.Lock()
        self._sender: int | None = None
        # No pipe from forked children: they write to the captured descriptors.
        super().__init__(sock, pipe=False, session=session)

    @contextmanager
    def sending(self) -> Iterator[None]:
        """Whoever flushes or sends does it in here, so that what was taken first is sent first."""
        if self._sender == threading.get_ident():
            yield
            return
        with Uninterrupted(), self._lock:
            self._sender = threading.get_ident()
            try:
                yield
                # Sending takes in what came for the socket; the loop would not be told of it again.
                if self.socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:
                    self.io_loop.add_callback(self._subscriptions)
            finally:
                self._sender = None

    def settled(self) -> None:
        """Return when no other thread is in the middle of sending."""
        with self._lock:
            pass

    def schedule(self, f: Callable[[], Any]) -> None:
        # In a forked child the lock may be held by nobody, and the socket is dead.
        if os.getpid() == self._master_pid:
            with self.sending():
                f()

    def _really_send(self, msg: list[bytes], *_: Any, **__: Any) -> None:
        send = self.socket.send
        for part in msg[:-1]:
            send(part, _MORE)
        send(msg[-1], 0)

    def _setup_event_pipe(self) -> None:
        """Nothing is handed to the thread."""

    def _setup_xpub_listener(self) -> None:
        self.io_loop.add_handler(self.socket.FD, self._subscriptions, self.io_loop.READ)

    def _subscriptions(self, *_: int) -> None:
        with self._lock:
            while self.socket.getsockopt(zmq.EVENTS) & zmq.POLLIN:
                self._handle_subscription(self.socket.recv_multipart(zmq.NOBLOCK))

    def _thread_main(self) -> None:
        self.io_loop.start()


class DirectStream(CapturedStream):
    """A stream that flushes where it is told to."""

    pub_thread: Publisher

    def _schedule_flush(self) -> None:
        if self._flush_pending:
            return
        self._flush_pending = True
        self._io_loop.add_callback(self._io_loop.call_later, self.flush_interval, self._late)

    def _late(self) -> None:
        self._flush_pending = False
        self._flush()

    def flush(self) -> None:
        self._flush()

    def _flush(self) -> None:
        self._take()
        if not self._buffers:
            self.pub_thread.settled()
            return
        waiting = self._flush_pending
        with self.pub_thread.sending():
            super()._flush()
        # The timer goes on: it is set once for many flushes, each of which would have to wake the thread.
        self._flush_pending = waiting


class DirectReplies(ZMQStream):
    """A stream whose messages are sent when they are given, not a turn of the loop later."""

    def send_multipart(self, msg: Sequence[Any], *_: Any, **__: Any) -> None:
        self.socket.send_multipart(msg)
        # Sending takes in what came for the socket; the loop would not be told of it again.
        self._rebuild_io_state()

    def flush(self, *_: Any, **__: Any) -> int:
        return 0
