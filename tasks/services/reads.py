"""Reads of the storage whose results are kept, for the storage may be far away and what is read never changes."""

import pyarrow as pa

from nbrl.infra.storage import Storage
from nbrl.tasks.environments import stored
from nbrl.tasks.layout import DataLayout
from nbrl.tasks.runs.scope import Artifact, Scope

TABLES = 4  # so that the rewards of a round are still there when its iteration ends


class Reads:
    """Keeps the tables that were read last, all questions, and the keys of the stage in progress."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._tables: dict[tuple[str, str], pa.Table] = {}
        self._questions: dict[str, pa.Table] = {}
        self._stage, self._keys = "", frozenset[str]()

    def table(self, artifact: Artifact) -> pa.Table:
        """The table of an artifact. Raises DamagedError where it is not what the node wrote."""
        place = artifact.path, artifact.digest
        table = self._tables.pop(place, None)
        if table is None:
            table = self._storage.read_table(*place)
        self._tables[place] = table
        for oldest in list(self._tables)[:-TABLES]:
            self._tables.pop(oldest, None)
        return table

    def questions(self, layout: DataLayout, split: str) -> pa.Table:
        """The questions of a split. Raises DamagedError where they are not what was written."""
        key = layout.split(split)
        if key not in self._questions:
            self._questions[key] = stored.read(self._storage, layout, split)
        return self._questions[key]

    def keys_of(self, scope: Scope) -> frozenset[str]:
        """Keys below an iteration or evaluation, as they were when this process came to it."""
        if self._stage != scope.layout.folder:
            self._stage, self._keys = scope.layout.folder, frozenset(self._storage.list(scope.layout.folder))
        return self._keys
