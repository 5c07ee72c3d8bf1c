"""Checkpoints in a folder that all ranks see: on one machine, or on a network file system.

One is written by all ranks as `<folder>.partial`, which is renamed once it is complete. States that come later are written
beside it, and moved into it before its manifest names them.
"""

import os
import shutil
from pathlib import Path

from nbrl.infra.blobs import flush_folder
from nbrl.infra.errors import DamagedError, MissingError
from nbrl.infra.manifest import MANIFEST, check_whole, manifest_bytes, read_manifest, write_manifest
from nbrl.infra.node_cache import CopyLease
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import UpdateError
from nbrl.tasks.layout.checkpoints import CRITIC, RESULT, STATE
from nbrl.tasks.learner.checkpoint.identity import result_of
from nbrl.tasks.learner.orders import UpdateOrder, UpdateResult
from nbrl.tasks.learner.process.ranks import Ranks


class LocalCheckpoints:
    """A CheckpointStore on a folder."""

    def __init__(self, storage: Storage, ranks: Ranks) -> None:
        self._storage, self._ranks = storage, ranks

    def earlier_result(self, order: UpdateOrder, digest: str) -> UpdateResult | None:
        try:
            check_whole(self._folder(order.checkpoint_out))
        except (MissingError, DamagedError):
            return None
        result = result_of(self._storage, order.checkpoint_out)
        if result.iteration != order.iteration:
            raise UpdateError(f"{order.checkpoint_out} is of iteration {result.iteration}, not {order.iteration}")
        return result if result.order == digest else None

    def begin(self, out: str) -> Path:
        return self._empty(self._partial(out))

    def abandon(self, out: str) -> None:
        self._delete(self._partial(out))

    def finish(self, out: str, result: UpdateResult) -> None:
        folder, partial = self._folder(out), self._partial(out)

        def rename() -> None:
            (partial / RESULT).write_text(result.model_dump_json())
            write_manifest(partial)
            shutil.rmtree(folder, ignore_errors=True)
            os.rename(partial, folder)
            flush_folder(folder.parent)

        self._ranks.on_first(rename)

    def begin_states(self, out: str) -> Path:
        return self._empty(self._states(out))

    def add_states(self, out: str) -> None:
        """Add the states, on rank 0 alone: it knows that all have written, once its own writing has ended."""
        if self._ranks.rank:
            return
        folder, states = self._folder(out), self._states(out)
        write_manifest(states)
        digests = read_manifest((states / MANIFEST).read_bytes(), str(states))
        manifest = self._storage.read_manifest(out)
        for state in filter(Path.is_dir, states.iterdir()):
            shutil.rmtree(folder / state.name, ignore_errors=True)  # of a process that was killed before the manifest named it
            state.rename(folder / state.name)
        self._storage.write_bytes(f"{out}/{MANIFEST}", manifest_bytes(manifest | digests))
        shutil.rmtree(states)

    def abandon_states(self, out: str) -> None:
        self._delete(self._states(out))
        if self._ranks.rank == 0 and (manifest := self._folder(out) / MANIFEST).is_file():
            named = read_manifest(manifest.read_bytes(), str(manifest))
            for state in (STATE, CRITIC):  # moved, and then not named
                if not any(name.startswith(f"{state}/") for name in named):
                    shutil.rmtree(self._folder(out) / state, ignore_errors=True)

    def open(self, checkpoint: str, part: str) -> CopyLease:
        return CopyLease(self._folder(checkpoint))

    def _folder(self, key: str) -> Path:
        folder = self._storage.local_path(key)
        if folder is None:
            raise RuntimeError(f"{self._storage.uri(key)} is not in a folder")
        return folder

    def _partial(self, key: str) -> Path:
        folder = self._folder(key)
        return folder.with_name(f"{folder.name}.partial")

    def _states(self, key: str) -> Path:
        folder = self._folder(key)
        return folder.with_name(f"{folder.name}.states.partial")

    def _empty(self, folder: Path) -> Path:
        """Collective. Return the folder, without what an interrupted order left in it."""

        def clear() -> None:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)

        self._ranks.on_first(clear)
        return folder

    def _delete(self, folder: Path) -> None:
        if self._ranks.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
