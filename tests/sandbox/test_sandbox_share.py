"""What a kernel's JSON costs the host's event loop, in time of the processor: a busy machine gives less of it and never more."""

import asyncio
import contextlib
import gc
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbrl.sandbox import untrusted
from nbrl.sandbox.host_calls import HostCalls
from nbrl.sandbox.inside.channel import LENGTH
from nbrl.sandbox.settings import KernelLimits
from nbrl.sandbox.share import Share

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text("[]{}\\\"',é\ud800", max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('[{\\"', max_size=4), inner, max_size=4),
    max_leaves=30,
)


def containers(value: object) -> int:
    if isinstance(value, dict):
        return 1 + sum(map(containers, value.values()))
    return 1 + sum(map(containers, value)) if isinstance(value, list) else 0


@given(values, st.integers(0, 30), st.booleans())
def test_only_lists_and_objects_count(value: Any, most: int, ascii_only: bool) -> None:
    data = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(untrusted, "CONTAINERS", most)
        if containers(value) > most:
            with pytest.raises(untrusted.TooManyContainers):
                untrusted.loads(data)
        else:
            assert untrusted.loads(data) == value


@given(st.text('[]{}",\\ é0', max_size=60), st.sampled_from(["utf-8", "utf-16", "utf-32-le"]))
def test_no_other_text_hides_them(text: str, encoding: str) -> None:
    """Whatever is parsed has no more than it may; the rest is refused in one way or the other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(untrusted, "CONTAINERS", 3)
        with contextlib.suppress(ValueError):
            assert containers(untrusted.loads(text.encode(encoding))) <= 3


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.spent = 0.0
        self.now = 1000.0

    def thread_time(self) -> float:
        return self.spent

    def monotonic(self) -> float:
        return self.now

    def work(self, seconds: float) -> None:
        self.spent += seconds
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("nbrl.sandbox.share.time", made)
    return made


def test_what_was_spent_is_paid_for_at_a_tenth_after_a_burst(clock: Clock) -> None:
    share = Share()
    for seconds, wait in ((0.2, 0.0), (0.1, 0.9), (0.3, 3.6)):
        with contextlib.suppress(KeyError), share.spend():
            assert not gc.isenabled()
            clock.work(seconds)
            raise KeyError
        assert gc.isenabled()
        assert share.wait() == pytest.approx(wait)
    clock.now += 100
    assert share.wait() == 0
    with share.spend():
        clock.work(0.25)
    assert share.wait() == pytest.approx(0.5)


def test_work_that_waits_is_paid_for_in_all_its_turns_and_not_while_it_waits(clock: Clock) -> None:
    async def work() -> str:
        clock.work(0.2)
        await asyncio.sleep(0)
        clock.work(0.3)
        return "done"

    async def run() -> str:
        share = Share()
        waiting = asyncio.ensure_future(share.steps(work()))
        await asyncio.sleep(0)
        clock.work(0.5)  # by somebody else
        assert await waiting == "done"
        assert share.wait() == pytest.approx(3 - 0.5 - 0.3)
        return "checked"

    assert asyncio.run(run()) == "checked"


@pytest.mark.parametrize("caught", [False, True])
def test_work_whose_turns_are_counted_is_cancelled_like_any_other(caught: bool) -> None:
    ended: list[str] = []

    async def work() -> str:
        try:
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            ended.append("cancelled")
            if not caught:
                raise
            await asyncio.sleep(0)
        return "went on"

    async def run() -> str:
        task = asyncio.ensure_future(Share().steps(work()))
        await asyncio.sleep(0)
        task.cancel()
        return await task

    if caught:
        assert asyncio.run(run()) == "went on"
    else:
        with pytest.raises(asyncio.CancelledError):
            asyncio.run(run())
    assert ended == ["cancelled"]


def test_what_work_raises_comes_through() -> None:
    async def work() -> None:
        await asyncio.sleep(0)
        raise LookupError

    async def run() -> None:
        await Share().steps(work())

    with pytest.raises(LookupError):
        asyncio.run(run())
    assert gc.isenabled()


def busy(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


@contextlib.contextmanager
def flood(request: bytes) -> Iterator[socket.socket]:
    """A channel whose other end sends the request endlessly and takes what is answered."""
    ours, theirs = socket.socketpair()
    data = LENGTH.pack(len(request)) + request

    def send() -> None:
        with contextlib.suppress(OSError):
            while True:
                theirs.sendall(data)

    def take() -> None:
        with contextlib.suppress(OSError):
            while theirs.recv(1 << 16):
                pass

    threads = [threading.Thread(target=work, daemon=True) for work in (send, take)]
    for thread in threads:
        thread.start()
    yield ours
    theirs.shutdown(socket.SHUT_RDWR)
    for thread in threads:
        thread.join(20)
    theirs.close()


COSTLY = {
    "lists": "[" + "[]," * 300_000 + "0]",
    "as many lists as may be": "[" + "[]," * (untrusted.CONTAINERS - 10) + "0]",
    "deep lists": "[" + ("[" * 900 + "]" * 900 + ",") * 540 + "0]",
    "keys": "{" + ",".join(f'"{number:x}":0' for number in range(100_000)) + "}",
    "numbers": "[" + "1.5," * 240_000 + "0]",
}


@pytest.mark.more
@pytest.mark.parametrize("value", COSTLY.values(), ids=COSTLY)
def test_costly_requests_get_a_share_of_the_event_loop_and_set_no_collector_to_work(value: str) -> None:
    request = f'{{"id": 1, "name": "echo", "arguments": {{"value": {value}}}}}'.encode()
    asked, rounds, held = 0, 0, [0.0]

    async def echo(arguments: dict[str, Any]) -> int:
        return 1

    def note(phase: str, about: dict[str, int]) -> None:
        nonlocal rounds
        rounds += phase == "start"

    async def run() -> tuple[float, float]:
        nonlocal asked
        host_calls = HostCalls(KernelLimits(calls_per_s=1e6))
        host_calls.tools = {"echo": echo}
        with flood(request) as channel:
            serving = asyncio.create_task(host_calls.serve(channel))
            began, clock = time.thread_time(), time.monotonic()
            while time.monotonic() < clock + 2:
                before = time.thread_time()
                await asyncio.sleep(0.001)
                held.append(time.thread_time() - before)
            spent, passed = time.thread_time() - began, time.monotonic() - clock
            asked = host_calls.calls
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
        return spent, passed

    # Garbage and memory of other tests are not what a collection in this one should look at.
    gc.collect()
    gc.freeze()
    gc.callbacks.append(note)
    try:
        spent, passed = asyncio.run(run())
    finally:
        gc.callbacks.remove(note)
        gc.unfreeze()
    assert asked > 0
    assert spent < 0.6 * passed
    assert rounds < 3 * asked + 50
    # No longer at once than to parse a list of a million small numbers takes, a few times over.
    assert max(held) < 5 * once()


def test_what_a_tool_does_on_the_event_loop_counts() -> None:
    async def check(arguments: dict[str, Any]) -> int:
        busy(0.05)
        return 1

    async def run() -> tuple[float, float]:
        host_calls = HostCalls(KernelLimits(calls_per_s=1e6))
        host_calls.tools = {"check": check}
        with flood(b'{"id": 1, "name": "check", "arguments": {}}') as channel:
            serving = asyncio.create_task(host_calls.serve(channel))
            began, clock = time.thread_time(), time.monotonic()
            await asyncio.sleep(2)
            spent, passed = time.thread_time() - began, time.monotonic() - clock
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
        assert host_calls.calls
        return spent, passed

    spent, passed = asyncio.run(run())
    assert spent < 0.6 * passed


def once() -> float:
    data = "[" + "0," * 500_000 + "0]"
    began = time.thread_time()
    json.loads(data)
    return time.thread_time() - began
