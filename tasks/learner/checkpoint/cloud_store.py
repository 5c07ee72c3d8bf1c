"""Checkpoints on a cloud: each rank stores what it wrote, and the manifest, which is stored last, makes a folder of the parts."""

from contextlib import ExitStack, suppress
from pathlib import Path

from nbrl.infra.errors import DamagedError, MissingError, StorageError
from nbrl.infra.manifest import MANIFEST, manifest_bytes, read_manifest
from nbrl.infra.node_cache import CopyLease, NodeCache, NodeSettings
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import UpdateError
from nbrl.tasks.layout.checkpoints import ADAPTER, HF, RESULT
from nbrl.tasks.learner.checkpoint.identity import result_of
from nbrl.tasks.learner.orders import UpdateOrder, UpdateResult
from nbrl.tasks.learner.process.ranks import Ranks


class CloudCheckpoints:
    """A CheckpointStore on a cloud. What this rank writes, and what it reads, lies on the disk of its machine meanwhile."""

    def __init__(self, storage: Storage, nodes: NodeSettings, ranks: Ranks) -> None:
        self._storage, self._ranks, self._beside, self._cache = storage, ranks, ranks.apart(), NodeCache(nodes)
        # The folders between `begin` and `finish`, and between `begin_states` and `add_states`.
        self._writing, self._mine = ExitStack(), Path()
        self._writing_states, self._my_states = ExitStack(), Path()

    def earlier_result(self, order: UpdateOrder, digest: str) -> UpdateResult | None:
        """Return the earlier result without verifying objects; readers check them against the manifest."""
        checkpoint = order.checkpoint_out
        try:
            manifest = read_manifest(self._storage.read_bytes(f"{checkpoint}/{MANIFEST}"), self._storage.uri(checkpoint))
            stored = set(self._storage.list(checkpoint))
            if any(f"{checkpoint}/{name}" not in stored for name in manifest):
                return None
            self._storage.read_bytes(f"{checkpoint}/{RESULT}", manifest.get(RESULT, ""))
        except (MissingError, DamagedError):
            return None
        result = result_of(self._storage, checkpoint)
        if result.iteration != order.iteration:
            raise UpdateError(f"{checkpoint} is of iteration {result.iteration}, not {order.iteration}")
        return result if result.order == digest else None

    def begin(self, out: str) -> Path:
        self._mine = self._empty(self._writing, f"rank-{self._ranks.rank}")
        return self._mine

    def abandon(self, out: str) -> None:
        self._writing.close()

    def finish(self, out: str, result: UpdateResult) -> None:
        ranks, storage, folder = self._ranks, self._storage, self._mine

        def store() -> dict[str, str]:
            if ranks.rank == 0:
                (folder / RESULT).write_text(result.model_dump_json())
            return storage.upload_part(folder, out)

        parts = ranks.gathered(ranks.together(store))
        manifest = manifest_bytes({name: digest for part in parts for name, digest in part.items()})

        def complete() -> None:
            storage.write_bytes(f"{out}/{MANIFEST}", manifest)
            with suppress(OSError, StorageError):  # the checkpoint is there; a process that needs it fetches it
                for part in filter(lambda name: (folder / name).is_dir(), (HF, ADAPTER)):
                    (folder / MANIFEST).write_bytes(manifest)
                    self._cache.adopt(folder, part)

        ranks.on_first(complete)
        self._writing.close()

    def begin_states(self, out: str) -> Path:
        self._my_states = self._empty(self._writing_states, f"states-{self._ranks.rank}")
        return self._my_states

    def add_states(self, out: str) -> None:
        ranks, storage = self._beside, self._storage
        parts = ranks.gathered(ranks.together(lambda: storage.upload_part(self._my_states, out)))
        states = {name: digest for part in parts for name, digest in part.items()}

        def name() -> None:
            storage.write_bytes(f"{out}/{MANIFEST}", manifest_bytes(storage.read_manifest(out) | states))

        ranks.on_first(name)
        self._writing_states.close()

    def abandon_states(self, out: str) -> None:
        self._writing_states.close()

    def open(self, checkpoint: str, part: str) -> CopyLease:
        return self._cache.lease(self._storage, checkpoint, part)

    def _empty(self, writing: ExitStack, name: str) -> Path:
        """Collective. Return an empty folder of this rank, until `writing` is closed."""
        writing.close()
        return self._ranks.together(lambda: writing.enter_context(self._cache.scratch(name)))
