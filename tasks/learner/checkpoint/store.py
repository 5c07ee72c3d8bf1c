"""Stores checkpoints of all ranks and finds them again: on a folder that all of them see, or on a cloud.

A checkpoint has `hf/` (safetensors, to serve), `logprobs.parquet` (the learner's log-probs of the sampled tokens), `result.json`
(the result of the order) and `manifest.json` (the SHA-256 of every file). Unless the order wants none, it also
has `state/` (sharded, to resume from) and with a critic its state in `critic/`; they may be added after all else. With LoRA
the states hold only adapters, `hf/` is merged, and `adapter/` is in peft's format.
"""

from pathlib import Path
from typing import Protocol

from nbrl.infra.node_cache import CopyLease, NodeSettings
from nbrl.infra.storage import Storage
from nbrl.tasks.learner.orders import UpdateOrder, UpdateResult
from nbrl.tasks.learner.process.ranks import Ranks


class CheckpointStore(Protocol):
    """One rank's access to the checkpoints of a storage. A checkpoint is either absent or complete, and so are its states."""

    def earlier_result(self, order: UpdateOrder, digest: str) -> UpdateResult | None:
        """Return the result of the order if it was carried out before. A checkpoint that is damaged, or of another order of this
        iteration, is ignored.
        """
        ...

    def begin(self, out: str) -> Path:
        """Collective. Return an empty folder into which this rank writes its part of the checkpoint `out`."""
        ...

    def abandon(self, out: str) -> None:
        """Delete what this rank wrote since `begin`."""
        ...

    def finish(self, out: str, result: UpdateResult) -> None:
        """Collective. Make the checkpoint of all parts, in place of that of another order; rank 0's `result` is the one that
        counts. Raises an error on every rank if one could not.
        """
        ...

    def begin_states(self, out: str) -> Path:
        """Collective. Return a folder as `begin` does, for states that are added later."""
        ...

    def add_states(self, out: str) -> None:
        """Collective. Add the states that all ranks have written to the finished `out`, perhaps beside other work."""
        ...

    def abandon_states(self, out: str) -> None:
        """Delete what this rank wrote since `begin_states`."""
        ...

    def open(self, checkpoint: str, part: str) -> CopyLease:
        """Return the checkpoint as a local folder, of which the subfolder `part` is there. Raises StorageError if it is not."""
        ...


def store_on(storage: Storage, nodes: NodeSettings, ranks: Ranks) -> CheckpointStore:
    """Return the store for a storage. Each kind is imported where it is needed, because both import this module's types."""
    if storage.is_local:
        from nbrl.tasks.learner.checkpoint.local_store import LocalCheckpoints

        return LocalCheckpoints(storage, ranks)
    from nbrl.tasks.learner.checkpoint.cloud_store import CloudCheckpoints

    return CloudCheckpoints(storage, nodes, ranks)
