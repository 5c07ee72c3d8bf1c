"""A model folder that several machines need."""

from dataclasses import dataclass
from pathlib import Path

from nbrl.infra.node_cache import Lease, NodeCache
from nbrl.infra.storage import Storage


@dataclass(frozen=True)
class PlacedModel:
    """At `path` on each machine that needs it or, if there is a `storage`, below that key of it."""

    path: str
    storage: Storage | None = None

    def lease(self, cache: NodeCache, part: str = "") -> Lease:
        """The folder, or its subfolder `part`, on this machine. Raises StorageError if it cannot be had."""
        return Lease(Path(self.path)) if self.storage is None else cache.lease(self.storage, self.path, part)
