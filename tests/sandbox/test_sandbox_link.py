"""The connections to a kernel: any peer, honest or hostile, whole messages or an end; and nothing held beyond a bound."""

import asyncio
import contextlib
import gc
import itertools
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from nbrl.sandbox.inside import zmtp
from nbrl.sandbox.jupyter.connection import Connection
from nbrl.sandbox.jupyter.messages import KernelMessage, MessageCodec
from nbrl.sandbox.jupyter.outputs import Execution
from nbrl.sandbox.kernel import SandboxKernel
from nbrl.sandbox.pool import KernelPool
from nbrl.sandbox.start.kernel_process import Address, name_sockets, unbound
from tests.sandbox.sandbox_lab import Lab

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
READY = b"\x04\x1a\x05READY\x0bSocket-Type\x00\x00\x00\x04XPUB"
MESSAGES = st.lists(st.lists(st.binary(max_size=20) | st.binary(min_size=250, max_size=300), min_size=1, max_size=16), max_size=8)
LARGEST = 5000


def parse(parser: zmtp.Parser, chunks: list[bytes]) -> list[list[bytes]]:
    """The messages in `chunks`; checks the bound after each."""
    found = []
    for chunk in chunks:
        parser.feed(chunk)
        while (frames := parser.take()) is not None:
            found.append(frames)
        assert parser.held <= LARGEST + 9
    return found


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[start:end] for start, end in itertools.pairwise(places)]


@given(MESSAGES, st.lists(st.integers(0, 1 << 20), max_size=30))
def test_messages_come_out_whole_however_their_bytes_are_cut(messages: list[list[bytes]], cuts: list[int]) -> None:
    data = GREETING + READY + b"".join(map(zmtp.encode, messages))
    parser = zmtp.Parser(LARGEST)
    assert parse(parser, pieces(data, cuts)) == messages
    assert parser.ready
    assert parser.held == 0


@given(st.booleans(), st.lists(st.binary(max_size=600), max_size=20))
def test_any_bytes_are_messages_or_a_breach_and_what_is_held_is_bounded(greeted: bool, chunks: list[bytes]) -> None:
    parser = zmtp.Parser(LARGEST)
    with contextlib.suppress(zmtp.Breach):
        parse(parser, [GREETING + READY, *chunks] if greeted else chunks)


@pytest.mark.parametrize(
    "data",
    [
        b"\x01\x01x" * 17,
        b"\x03" + (3000).to_bytes(8, "big") + bytes(3000) + b"\x03" + (2001).to_bytes(8, "big"),
        b"\x02" + b"\xff" * 8,
        b"\x04\x05\x04PING",
        b"\x05\x05\x04PING",
        b"\x08\x00",
    ],
    ids=["many frames", "large frames", "endless frame", "command", "command with more", "unknown flags"],
)
def test_a_breach_is_known_as_soon_as_it_shows(data: bytes) -> None:
    parser = zmtp.Parser(LARGEST)
    with pytest.raises(zmtp.Breach):
        parse(parser, [GREETING + READY + data])


class Bench:
    """A link whose peer is this test: what came of it, and when it broke."""

    def __init__(self, folder: Path, keep: bool) -> None:
        self._keep = keep
        self.address = Address(folder / "k", b"key")
        self.sockets = unbound()
        self.channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        name_sockets(self.channel, self.sockets, self.address)
        self.messages: list[KernelMessage] = []
        self.news = asyncio.Event()
        self.broken = asyncio.Event()
        self.link = Connection(self.address, 1 << 20, self._receive, self.broken.set)

    def _receive(self, message: KernelMessage) -> None:
        if self._keep:
            self.messages.append(message)
        self.news.set()

    def accept(self, channel: int) -> socket.socket:
        peer, _ = self.sockets[channel].accept()
        peer.setblocking(True)
        return peer

    def close(self) -> None:
        self.link.close()
        for sock in (self.channel, *self.sockets):
            sock.close()


@contextlib.contextmanager
def bench(folder: Path, keep: bool = True) -> Iterator[Bench]:
    folder.mkdir(exist_ok=True)
    made = Bench(folder, keep)
    try:
        yield made
    finally:
        made.close()


def signed(kind: str) -> list[bytes]:
    return MessageCodec(b"key").request(kind, {})[1]


def endlessly(peer: socket.socket, data: bytes) -> threading.Thread:
    """Send until the other end is gone."""

    def run() -> None:
        with contextlib.suppress(OSError):
            peer.sendall(GREETING + READY)
            while True:
                peer.sendall(data)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def test_libzmq_is_understood_and_understands(tmp_path: Path) -> None:
    async def run() -> None:
        with (
            bench(tmp_path) as one,
            zmq.Context() as context,
            context.socket(zmq.ROUTER) as shell,
            context.socket(zmq.XPUB) as iopub,
        ):
            for sock, number in ((shell, 0), (iopub, 1)):
                sock.setsockopt(zmq.USE_FD, one.sockets[number].detach())
                sock.setsockopt(zmq.RCVTIMEO, 10_000)
                sock.bind(f"ipc://adopted-{number}")
            one.link.send("execute_request", {"code": "x" * 500_000})
            identity, *frames = await asyncio.to_thread(shell.recv_multipart)
            assert MessageCodec(b"key").parse(frames).content == {"code": "x" * 500_000}  # type: ignore[union-attr]
            assert await asyncio.to_thread(iopub.recv) == b"\x01"
            iopub.send_multipart([b"topic", *signed("iopub_welcome")])
            shell.send_multipart([identity, *signed("execute_reply")])
            while len(one.messages) < 2:
                one.news.clear()
                await asyncio.wait_for(one.news.wait(), 10)
            assert {message.kind for message in one.messages} == {"iopub_welcome", "execute_reply"}
            assert not one.broken.is_set()

    asyncio.run(run())


@pytest.mark.parametrize("channel", [0, 1])
@pytest.mark.parametrize("data", [b"\x01\x00", b"\x03" + (1 << 19).to_bytes(8, "big") + bytes(1 << 19), b"\xff"], ids=str)
def test_a_message_without_end_breaks_the_link(tmp_path: Path, channel: int, data: bytes) -> None:
    async def run() -> None:
        with bench(tmp_path) as one:
            with one.accept(channel) as peer:
                thread = endlessly(peer, data)
                await asyncio.wait_for(one.broken.wait(), 60)
                await asyncio.to_thread(thread.join, 10)
            one.link.send("execute_request", {})

    asyncio.run(run())


def test_a_closed_connection_is_noticed_at_once(tmp_path: Path) -> None:
    async def run() -> None:
        with bench(tmp_path) as one:
            one.accept(1).close()
            await asyncio.wait_for(one.broken.wait(), 60)
        (tmp_path / "k-1").unlink()
        gone = asyncio.Event()
        Connection(one.address, 1 << 20, lambda message: None, gone.set)
        await asyncio.wait_for(gone.wait(), 60)

    asyncio.run(run())


@pytest.mark.parametrize("hello", [b"", GREETING + READY], ids=["silent", "ready"])
def test_a_peer_that_takes_nothing_holds_up_nobody_and_no_second_request(tmp_path: Path, hello: bytes) -> None:
    async def run() -> None:
        with bench(tmp_path) as one, one.accept(0) as peer:
            peer.sendall(hello)
            await asyncio.sleep(0.05)
            one.link.send("execute_request", {"code": "x" * 1_000_000})
            assert not one.broken.is_set()
            one.link.send("execute_request", {"code": "y"})
            assert one.broken.is_set()

    asyncio.run(run())


def test_a_flood_starves_nobody_and_waits_when_it_is_not_read(tmp_path: Path) -> None:
    async def run() -> None:
        with (
            bench(tmp_path / "a") as flooded,
            bench(tmp_path / "b") as other,
            flooded.accept(1) as flooding,
            other.accept(1) as calm,
        ):
            thread = endlessly(flooding, zmtp.encode(signed("stream")) * 50)
            calm.sendall(GREETING + READY)
            await asyncio.wait_for(flooded.news.wait(), 60)
            for number in range(20):
                other.news.clear()
                calm.sendall(zmtp.encode(signed("stream")))
                await asyncio.wait_for(other.news.wait(), 60)
                assert len(other.messages) == number + 1
            flooded.link.close()
            await asyncio.to_thread(thread.join, 10)
            assert not thread.is_alive()

    asyncio.run(run())


CONNECTION = """
import os, socket
def connection(end):
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            sock = socket.socket(fileno=os.dup(number))
            sock.getpeername()
            if str(sock.getsockname()).endswith(end):
                sock.setblocking(True)
                return sock
        except OSError:
            pass
"""
HOSTILE: dict[str, str] = {
    "frames without end": "sock = connection('-2')\nwhile True: sock.sendall(b'\\x01\\xff' + bytes(255))",
    "a frame without end": "sock = connection('-1')\nwhile True: sock.sendall(b'\\x02' + b'\\x7f' * 8 + bytes(65536))",
    "a cut": "connection('-2').shutdown(socket.SHUT_RDWR)\nwhile True: pass",
}


@pytest.mark.parametrize("code", HOSTILE.values(), ids=HOSTILE)
def test_a_kernel_that_breaks_the_protocol_is_dead_at_once(shared_lab: Lab, code: str) -> None:
    async def body(kernel: SandboxKernel) -> tuple[Execution, Execution]:
        return await kernel.execute(CONNECTION + code, timeout=250), await kernel.execute("1")

    done, after = shared_lab.with_kernel(body)
    assert (done.status, after.status) == ("dead", "dead")
    assert done.seconds < 200


def test_a_kernel_costs_few_descriptors(lab: Lab) -> None:
    async def run() -> int:
        async with KernelPool(lab.settings()) as pool, pool.kernel():
            before = len(os.listdir("/proc/self/fd"))
            async with pool.kernel():
                return len(os.listdir("/proc/self/fd")) - before

    assert asyncio.run(run()) <= (6 if lab.provisioner == "zygote" else 10)


def test_a_breach_behind_many_messages_ends_the_connection_quietly(tmp_path: Path) -> None:
    async def run() -> list[dict[str, Any]]:
        complaints: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        with bench(tmp_path) as one, one.accept(1) as peer:
            peer.sendall(GREETING + READY + zmtp.encode([b"x"]) * 200 + b"\xff\xff")
            async with asyncio.timeout(20):
                await one.broken.wait()
            await asyncio.sleep(0.05)
        return complaints

    assert asyncio.run(run()) == []


def test_costly_messages_get_a_share_of_the_event_loop_and_set_no_collector_to_work(tmp_path: Path) -> None:
    """Time of the processor, of which a busy machine gives less and never more."""
    rounds: list[int] = []

    def note(phase: str, about: dict[str, int]) -> None:
        if phase == "start":
            rounds.append(about["generation"])

    async def run() -> float:
        with bench(tmp_path, keep=False) as one, one.accept(1) as peer:
            # Three bytes of JSON that become a hundred in memory.
            _, message = MessageCodec(b"key").request("stream", {"data": [[]] * 49_000})
            thread = endlessly(peer, zmtp.encode(message))
            await asyncio.wait_for(one.news.wait(), 10)
            gc.callbacks.append(note)
            began = time.thread_time()
            try:
                await asyncio.sleep(2.0)
            finally:
                gc.callbacks.remove(note)
            spent = time.thread_time() - began
            one.link.close()
        await asyncio.to_thread(thread.join, 20)
        return spent

    assert asyncio.run(run()) < 1.2
    assert len(rounds) < 10
    assert gc.isenabled()
