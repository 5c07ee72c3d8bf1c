"""A forked kernel's own channels and the thread beside it."""

import asyncio
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nbrl.sandbox.inside import zmtp
from nbrl.sandbox.inside.line import Line
from nbrl.sandbox.inside.watch import Watch

LARGE = 4 << 20  # more than the buffers of a socket hold


@pytest.fixture
def listening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    monkeypatch.chdir(tmp_path)  # the names of sockets are short
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind("line")
        sock.listen(1)
        sock.setblocking(False)
        yield sock


def messages(peer: socket.socket, number: int) -> list[list[bytes]]:
    parser, taken = zmtp.Parser(2 * LARGE), list[list[bytes]]()
    while len(taken) < number:
        if (message := parser.take()) is None:
            parser.feed(peer.recv(1 << 16))
        else:
            taken.append(message)
    return taken


def test_a_peer_gets_whole_messages_however_slowly_it_reads(listening: socket.socket) -> None:
    received, arrived = list[list[bytes]](), asyncio.Event()

    def receive(frames: list[bytes]) -> None:
        received.append(frames)
        arrived.set()

    line = Line(listening.detach(), "ROUTER", receive)
    line.send_multipart([b"nobody hears this"])
    sent: list[list[bytes | memoryview]] = [[b"a", bytes(LARGE), memoryview(b"view")], [b"", b"b"]]

    async def serve(peer: socket.socket) -> list[list[bytes]]:
        line.serve(asyncio.get_running_loop())
        peer.sendall(zmtp.hello("DEALER") + zmtp.encode([b"request", b"1"]))
        await arrived.wait()
        reading = asyncio.create_task(asyncio.to_thread(messages, peer, 2))
        await asyncio.sleep(0)
        for frames in sent:
            line.send_multipart(frames)
        return await reading

    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect("line")
        got = asyncio.run(serve(peer))
    assert received == [[b"request", b"1"]]
    assert got == [[bytes(frame) for frame in frames] for frames in sent]
    line.send_multipart([b"it has gone"])


@contextmanager
def running(watch: Watch) -> Iterator[None]:
    thread = threading.Thread(target=watch.run)
    thread.start()
    try:
        yield
    finally:
        watch.stop()
        thread.join()


def test_what_is_to_be_called_later_is_called_in_turn_whatever_another_raised() -> None:
    called, done, watch = list[str](), threading.Event(), Watch()
    with running(watch):
        watch.later(0.05, done.set)
        watch.later(0.02, lambda: called.append("second"))
        watch.later(0.01, lambda: called.append(str(1 // 0)))
        watch.later(0.0, lambda: called.append("first"))
        assert done.wait(10)
    assert called == ["first", "second"]


def test_a_descriptor_is_read_until_its_other_end_is_closed() -> None:
    reading, writing = os.pipe()
    got, done, watch = list[bytes](), threading.Event(), Watch()

    def read(descriptor: int) -> None:
        got.append(os.read(descriptor, 10))
        if len(got) == 1:
            os.write(writing, b"again")
        else:
            os.close(writing)
            watch.later(0.0, done.set)

    watch.add_handler(reading, read)
    with running(watch):
        os.write(writing, b"text")
        assert done.wait(10)
    os.close(reading)
    assert got == [b"text", b"again"]
