"""Where a learner finds its model, and the tables and checkpoints of its orders."""

from dataclasses import dataclass, field

from nbrl.infra.node_cache import CopyLease, NodeCache, NodeSettings, PlacedFolder
from nbrl.infra.storage import Storage


@dataclass(frozen=True)
class Places:
    """`storage` holds what orders name."""

    model: PlacedFolder
    storage: Storage
    nodes: NodeSettings = field(default_factory=NodeSettings)

    def initial(self) -> CopyLease:
        """Return the initial model on this machine. Raises StorageError if it cannot be had."""
        return self.model.lease(NodeCache(self.nodes))
