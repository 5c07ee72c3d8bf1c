"""Reads of the storage whose results are kept, for the storage may be far away and what is read never changes."""

import threading
from typing import TypeVar

import pyarrow as pa

from nbrl.infra.storage import Storage
from nbrl.tasks.environments import stored
from nbrl.tasks.layout.runs import DataLayout
from nbrl.tasks.runs.scope import Artifact, Scope

K = TypeVar("K")
V = TypeVar("V")
TABLES = 8  # so that the rewards of a round are still there when its iteration ends


class Reads:
    """Keeps the tables that were read last, all questions, and the keys of the stages in progress. Threads may share it."""

    def __init__(self, storage: Storage, stages: int = 1) -> None:
        """`stages`: how many are in progress at once."""
        self._storage, self._stages = storage, stages
        self._tables: dict[tuple[str, str], pa.Table] = {}
        self._questions: dict[str, pa.Table] = {}
        self._keys: dict[str, frozenset[str]] = {}
        self._changing = threading.Lock()

    def table(self, artifact: Artifact) -> pa.Table:
        """The table of an artifact. Raises DamagedError where it is not what the node wrote."""
        place = artifact.path, artifact.digest
        table = self._tables.get(place)
        if table is None:
            table = self._storage.read_table(*place)
        with self._changing:
            _keep(self._tables, place, table, TABLES)
        return table

    def questions(self, layout: DataLayout, split: str) -> pa.Table:
        """The questions of a split. Raises DamagedError where they are not what was written."""
        key = layout.split(split)
        if key not in self._questions:
            self._questions[key] = stored.read(self._storage, layout, split)
        return self._questions[key]

    def keys_of(self, scope: Scope) -> frozenset[str]:
        """Keys below an iteration or evaluation, as they were when this process came to it."""
        folder = scope.layout.folder
        keys = self._keys.get(folder)
        if keys is None:
            keys = frozenset(self._storage.list(folder))
        with self._changing:
            _keep(self._keys, folder, keys, self._stages)
        return keys


def _keep(kept: dict[K, V], key: K, value: V, most: int) -> None:
    """Put a value in, as the newest, in place of the oldest of too many."""
    kept.pop(key, None)
    kept[key] = value
    for oldest in list(kept)[:-most]:
        del kept[oldest]
