"""Finished trajectories in chunks: when they are written, and what is found of them again."""

import asyncio
from collections.abc import Collection, Iterable
from pathlib import Path

import pyarrow as pa
import pytest

from nbrl.agent.trajectory import Status, Trajectory, to_table
from nbrl.infra.errors import StorageError
from nbrl.infra.parts import joined
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.rollout import chunks as module
from nbrl.tasks.rollout.chunks import Chunks, found_in, write


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    return Storage(StorageSettings(root=str(tmp_path)))


def trajectory(identity: str, status: Status = Status.ANSWERED, answer: str = "") -> Trajectory:
    return Trajectory(
        id=identity, group="g", sample=0, question="q", ability="qa", status=status, answer=answer, nodes=[], steps=[]
    )


def keep(chunks: Chunks, *identities: str) -> list[asyncio.Task[bool]]:
    kept = [(one, to_table([one])) for one in map(trajectory, identities)]
    return [asyncio.create_task(chunks.keep(*each)) for each in kept]


async def nobody(index: pa.Table) -> set[str]:
    return set()


def found(storage: Storage, folders: Iterable[str], ids: Collection[str]) -> tuple[list[str], list[str]]:
    index, damaged = found_in(storage, [key for folder in folders for key in storage.list(folder)], ids)
    return index["id"].to_pylist(), damaged


def test_what_finishes_together_is_one_object_and_the_last_does_not_wait(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "EVERY_S", 1000.0)

    async def work() -> None:
        async def written(index: pa.Table) -> set[str]:
            told.append(index)
            return set()

        chunks = Chunks(storage, "f", written)
        chunks.expect(4, more=False)
        waiting = keep(chunks, "a", "b", "c")
        await asyncio.sleep(0.05)
        chunks.expect(0, more=True)
        waiting += keep(chunks, "e")
        await asyncio.sleep(0.05)
        chunks.expect(1, more=False)
        assert storage.list("f") == []
        assert not any(task.done() for task in waiting)
        await asyncio.gather(*waiting, *keep(chunks, "d"))

    told: list[pa.Table] = []
    asyncio.run(work())
    (key,) = storage.list("f")
    assert sorted(found(storage, ["f"], set("abcde"))[0]) == list("abcde")
    (index,) = told
    assert joined(index, storage.read_table)["id"].to_pylist() == index["id"].to_pylist() == list("abced")
    assert set(index["part"].to_pylist()) == {key}


def test_what_waits_is_written_after_a_while_though_more_is_to_come(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVERY_S", 0.01)

    async def work() -> None:
        chunks = Chunks(storage, "f", nobody)
        chunks.expect(100, more=False)
        await asyncio.gather(*keep(chunks, "a"))
        assert len(storage.list("f")) == 1
        await asyncio.gather(*keep(chunks, "b"))

    asyncio.run(work())
    assert len(storage.list("f")) == 2


def test_what_finishes_while_a_chunk_is_written_is_in_the_next(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVERY_S", 0.001)

    async def work() -> None:
        chunks = Chunks(storage, "f", nobody)
        chunks.expect(50, more=False)
        tasks = []
        for number in range(50):
            tasks += keep(chunks, str(number))
            await asyncio.sleep(0.001)
        await asyncio.gather(*tasks)

    asyncio.run(work())
    assert len(found(storage, ["f"], {str(number) for number in range(50)})[0]) == 50


def test_a_storage_that_fails_is_told_to_all_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        chunks = Chunks(Storage(StorageSettings(root="/proc/nbrl")), "f", nobody)
        chunks.expect(2, more=False)
        ends = await asyncio.gather(*keep(chunks, "a", "b"), return_exceptions=True)
        assert [type(end) for end in ends] == [StorageError, StorageError]

    asyncio.run(work())


def test_of_a_trajectory_in_several_chunks_the_first_by_key_counts_and_failed_ones_do_not(storage: Storage) -> None:
    write(storage, "f/1", to_table([trajectory("x", answer="second"), trajectory("y", answer="y")]))
    write(storage, "f/1", to_table([trajectory("x", Status.FAILED)]))
    write(storage, "f/0", to_table([trajectory("x", answer="first"), trajectory("another")]))
    keys = {key for folder in ("f/1", "f/0", "f") for key in storage.list(folder)}
    index, damaged = found_in(storage, keys, {"x", "y", "never"})
    table = joined(index, storage.read_table)
    assert dict(zip(table["id"].to_pylist(), table["answer"].to_pylist(), strict=True)) == {"x": "first", "y": "y"}
    assert damaged == []


def test_a_damaged_chunk_is_told_and_its_trajectories_are_not_there(storage: Storage) -> None:
    write(storage, "f", to_table([trajectory("x")]))
    lost = sorted([write(storage, "f", to_table([trajectory(identity)]))[0] for identity in "yz"])
    storage.write_bytes(lost[0], b"")
    flipped = bytearray(storage.read_bytes(lost[1]))
    flipped[len(flipped) // 3] ^= 1
    storage.write_bytes(lost[1], bytes(flipped))
    other, _ = write(storage, "f", pa.table({"id": ["x"]}))
    there, damaged = found(storage, ["f"], {"x", "y", "z"})
    assert there == ["x"]
    assert damaged == sorted(storage.uri(key) for key in (*lost, other))


def test_who_keeps_a_trajectory_hears_whether_it_counts(storage: Storage) -> None:
    async def work() -> list[bool]:
        async def written(index: pa.Table) -> set[str]:
            return {"b"}

        chunks = Chunks(storage, "f", written)
        chunks.expect(2, more=False)
        return await asyncio.gather(*keep(chunks, "a", "b"))

    assert asyncio.run(work()) == [True, False]
