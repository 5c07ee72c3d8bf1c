"""A folder that several machines need: a model, or a checkpoint."""

from dataclasses import dataclass
from pathlib import Path

from nbrl.infra.node_cache import Lease, NodeCache
from nbrl.infra.storage import Storage


@dataclass(frozen=True)
class PlacedFolder:
    """At `place`: a path that every machine has, or the key of a folder of the `storage`."""

    place: str
    storage: Storage | None = None

    def lease(self, cache: NodeCache, part: str = "") -> Lease:
        """The folder on this machine, or of it only the subfolder `part`. Raises StorageError if it cannot be had."""
        return Lease(Path(self.place)) if self.storage is None else cache.lease(self.storage, self.place, part)

    def __str__(self) -> str:
        return self.place if self.storage is None else self.storage.uri(self.place)
