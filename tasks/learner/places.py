"""The places of a learner's model, and of the tables and checkpoints of its orders."""

from dataclasses import dataclass, field

from nbrl.infra.node_cache import CopyLease, NodeCache, NodeSettings, PlacedFolder
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import UpdateError
from nbrl.tasks.learner.settings import UpdateSettings


@dataclass(frozen=True)
class Places:
    """`storage` holds what orders name. `teacher` is that of a loss that has one, unless it is served."""

    model: PlacedFolder
    storage: Storage
    nodes: NodeSettings = field(default_factory=NodeSettings)
    teacher: PlacedFolder | None = None

    def initial(self) -> CopyLease:
        """Return the initial model on this machine. Raises StorageError if it cannot be had."""
        return self.model.lease(NodeCache(self.nodes))


def on_cuda(settings: UpdateSettings, gpus: float, grows: bool = False) -> bool:
    """Return whether every rank uses one of the Ray cluster's `gpus`; more can appear only if the cluster `grows`.

    Raises UpdateError for settings that act only with a GPU, and if ranks would wait for GPUs in vain or leave them idle.
    """
    if settings.device == "cpu" or (settings.device == "auto" and not gpus):
        if settings.offload:
            raise UpdateError(
                f"update.offload {', '.join(settings.offload)} moves state from a GPU to the host, "
                "but the learner runs on the CPU: leave it out, or add GPUs"
            )
        return False
    if settings.dtype == "float64":
        raise UpdateError(
            "update.dtype float64 has no attention kernel on a GPU: use float32 or bfloat16, or set update.device to cpu"
        )
    if gpus < settings.workers and not (grows and settings.device == "cuda"):
        raise UpdateError(
            f"update.workers {settings.workers} need a GPU each, and there are {gpus:g}: lower update.workers, "
            f"or set update.device to cpu"
        )
    return True
