"""A limit on the memory of this process."""

import resource
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from nbrl.infra.process import memory
from nbrl.infra.process.memory import free_memory, memory_limited

MB = 1 << 20


def test_what_needs_more_fails_and_afterwards_does_not() -> None:
    usual = resource.getrlimit(resource.RLIMIT_DATA)
    with pytest.raises(MemoryError), memory_limited(100 * MB):
        bytearray(200 * MB)
    assert len(bytearray(200 * MB)) == 200 * MB
    assert resource.getrlimit(resource.RLIMIT_DATA) == usual


def test_of_several_limits_the_lowest_holds_in_whatever_order_they_end() -> None:
    usual, both = resource.getrlimit(resource.RLIMIT_DATA), Barrier(2)

    def first() -> None:
        with memory_limited(400 * MB):
            both.wait()  # the other has begun
            both.wait()
        both.wait()

    with ThreadPoolExecutor(1) as threads:
        other = threads.submit(first)
        with memory_limited(100 * MB):
            both.wait()
            with pytest.raises(MemoryError):
                bytearray(200 * MB)
            both.wait()
            both.wait()  # the first has ended
            with pytest.raises(MemoryError):
                bytearray(200 * MB)
        other.result()
    assert resource.getrlimit(resource.RLIMIT_DATA) == usual


def test_what_is_free_is_that_of_a_container_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "CONTAINER", tmp_path)
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 20\nactive_file 10\n")
    (tmp_path / "memory.current").write_text("60\n")
    (tmp_path / "memory.max").write_text("100\n")
    assert free_memory() == 70
    (tmp_path / "memory.max").write_text("max\n")
    assert free_memory() > 100
