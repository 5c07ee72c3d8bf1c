"""Finished trajectories on storage until their round is one table: several in one object, a chunk.

The name of a chunk is the SHA-256 of its bytes, so that runners and processes can share a folder and damage is seen. Trajectories
that failed are not written: the next attempt tries them again.
"""

import asyncio
from collections.abc import Collection, Iterable

import pyarrow as pa
from pydantic import ValidationError

from nbrl.agent.trajectory import Status, Trajectory, from_table
from nbrl.infra.errors import DamagedError, MissingError
from nbrl.infra.storage import Storage, encode, sha256
from nbrl.tasks.layout import chunk

EVERY_S = 2.0  # what a kill can cost of the work that is finished


class Chunks:
    """Writes what finishes of a batch into `folder`, at most one chunk in EVERY_S; the last one as soon as all of it is there."""

    def __init__(self, storage: Storage, folder: str, expected: int) -> None:
        """`expected` is the number of trajectories of which each is either kept or passed over."""
        self._storage, self._folder, self._left = storage, folder, expected
        self._waiting: list[pa.Table] = []
        self._writer: asyncio.Task[None] | None = None
        self._all = asyncio.Event()

    async def keep(self, trajectory: pa.Table) -> None:
        """Return once the trajectory, a table of one row, is on storage. Raises StorageError."""
        self._waiting.append(trajectory)
        writer = self._writer = self._writer or asyncio.create_task(self._write())
        self.pass_over()
        await asyncio.shield(writer)

    def pass_over(self) -> None:
        """There is one less to wait for."""
        self._left -= 1
        if not self._left:
            self._all.set()

    async def _write(self) -> None:
        try:
            async with asyncio.timeout(EVERY_S):
                await self._all.wait()
        except TimeoutError:
            pass
        tables, self._waiting, self._writer = self._waiting, [], None
        await asyncio.to_thread(write, self._storage, self._folder, pa.concat_tables(tables))


def write(storage: Storage, folder: str, trajectories: pa.Table) -> str:
    """Write a chunk below `folder`; returns its key."""
    data = encode(trajectories)
    key = chunk(folder, sha256(data))
    storage.write_bytes(key, data)
    return key


def finished(storage: Storage, folders: Iterable[str], ids: Collection[str]) -> tuple[dict[str, Trajectory], list[str]]:
    """Those of the trajectories that are in chunks below the folders, by id, and the chunks that are damaged, as addresses.

    Of one that several attempts finished, the first by the order of the keys is taken.
    """
    found: dict[str, Trajectory] = {}
    damaged = []
    for key in sorted({key for folder in folders for key in storage.list(folder)}):
        try:
            trajectories = from_table(storage.read_table(key, digest=key.rpartition("/")[2].partition(".")[0]))
        except (DamagedError, ValidationError):
            damaged.append(storage.uri(key))
        except MissingError:  # another process made the round's table in the meantime
            continue
        else:
            for trajectory in trajectories:
                if trajectory.id in ids and trajectory.status is not Status.FAILED:
                    found.setdefault(trajectory.id, trajectory)
    return found, damaged
