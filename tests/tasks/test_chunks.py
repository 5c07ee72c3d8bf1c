"""Finished trajectories in chunks: when they are written, and what is found of them again."""

import asyncio
from pathlib import Path

import pyarrow as pa
import pytest

from nbrl.agent.trajectory import Status, Trajectory, to_table
from nbrl.infra.errors import StorageError
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.rollout import chunks as module
from nbrl.tasks.rollout.chunks import Chunks, finished, write


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(StorageSettings(root=str(tmp_path)))


def trajectory(identity: str, status: Status = Status.ANSWERED, answer: str = "") -> Trajectory:
    return Trajectory(
        id=identity, group="g", sample=0, question="q", ability="qa", status=status, answer=answer, nodes=[], steps=[]
    )


def keep(chunks: Chunks, *identities: str) -> list[asyncio.Task[None]]:
    return [asyncio.create_task(chunks.keep(to_table([trajectory(identity)]))) for identity in identities]


def test_what_finishes_together_is_one_object_and_the_last_does_not_wait(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "EVERY_S", 1000.0)

    async def work() -> None:
        chunks = Chunks(storage, "f", expected=4)
        waiting = keep(chunks, "a", "b", "c")
        await asyncio.sleep(0.1)
        assert storage.list("f") == []
        assert not any(task.done() for task in waiting)
        chunks.pass_over()  # the last one failed
        await asyncio.gather(*waiting)

    asyncio.run(work())
    assert len(storage.list("f")) == 1
    assert set(finished(storage, ["f"], {"a", "b", "c"})[0]) == {"a", "b", "c"}


def test_what_waits_is_written_after_a_while_though_more_is_to_come(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVERY_S", 0.01)

    async def work() -> None:
        chunks = Chunks(storage, "f", expected=100)
        await asyncio.gather(*keep(chunks, "a"))
        assert len(storage.list("f")) == 1
        await asyncio.gather(*keep(chunks, "b"))

    asyncio.run(work())
    assert len(storage.list("f")) == 2


def test_what_finishes_while_a_chunk_is_written_is_in_the_next(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVERY_S", 0.001)

    async def work() -> None:
        chunks = Chunks(storage, "f", expected=50)
        tasks = []
        for number in range(50):
            tasks += keep(chunks, str(number))
            await asyncio.sleep(0.001)
        await asyncio.gather(*tasks)

    asyncio.run(work())
    assert len(finished(storage, ["f"], {str(number) for number in range(50)})[0]) == 50


def test_a_storage_that_fails_is_told_to_all_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        chunks = Chunks(Storage(StorageSettings(root="/proc/nbrl")), "f", expected=2)
        ends = await asyncio.gather(*keep(chunks, "a", "b"), return_exceptions=True)
        assert [type(end) for end in ends] == [StorageError, StorageError]

    asyncio.run(work())


def test_of_a_trajectory_in_several_chunks_the_first_by_key_counts_and_failed_ones_do_not(storage: Storage) -> None:
    write(storage, "f/1", to_table([trajectory("x", answer="second"), trajectory("y", answer="y")]))
    write(storage, "f/1", to_table([trajectory("x", Status.FAILED)]))
    write(storage, "f/0", to_table([trajectory("x", answer="first"), trajectory("another")]))
    found, damaged = finished(storage, ["f/1", "f/0", "f"], {"x", "y", "never"})
    assert {identity: one.answer for identity, one in found.items()} == {"x": "first", "y": "y"}
    assert damaged == []


def test_a_damaged_chunk_is_told_and_its_trajectories_are_not_there(storage: Storage) -> None:
    write(storage, "f", to_table([trajectory("x")]))
    lost = sorted([write(storage, "f", to_table([trajectory(identity)])) for identity in "yz"])
    storage.write_bytes(lost[0], b"")
    flipped = bytearray(storage.read_bytes(lost[1]))
    flipped[len(flipped) // 3] ^= 1
    storage.write_bytes(lost[1], bytes(flipped))
    other = write(storage, "f", pa.table({"id": ["x"]}))
    found, damaged = finished(storage, ["f"], {"x", "y", "z"})
    assert set(found) == {"x"}
    assert damaged == sorted(storage.uri(key) for key in (*lost, other))
