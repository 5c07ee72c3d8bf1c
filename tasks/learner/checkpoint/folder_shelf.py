"""Checkpoints in a folder that all ranks see: on one machine, or on a network file system.

One is written by all ranks as `<folder>.partial`, which is renamed once it is complete.
"""

import os
import shutil
from pathlib import Path

from nbrl.infra.blobs import flush_folder
from nbrl.infra.errors import DamagedError, MissingError
from nbrl.infra.manifest import check_whole, write_manifest
from nbrl.infra.node_cache import Lease
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import UpdateError
from nbrl.tasks.layout.checkpoints import RESULT
from nbrl.tasks.learner.checkpoint.identity import result_of
from nbrl.tasks.learner.orders import UpdateOrder, UpdateResult
from nbrl.tasks.learner.process.ranks import Ranks


class FolderShelf:
    """A Shelf on a folder."""

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
        partial = self._partial(out)

        def clear() -> None:  # deletes what an interrupted order left
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)

        self._ranks.on_first(clear)
        return partial

    def abandon(self, out: str) -> None:
        if self._ranks.rank == 0:
            shutil.rmtree(self._partial(out), ignore_errors=True)

    def finish(self, out: str, result: UpdateResult) -> None:
        folder, partial = self._folder(out), self._partial(out)

        def rename() -> None:
            (partial / RESULT).write_text(result.model_dump_json())
            write_manifest(partial)
            shutil.rmtree(folder, ignore_errors=True)
            os.rename(partial, folder)
            flush_folder(folder.parent)

        self._ranks.on_first(rename)

    def open(self, checkpoint: str, part: str) -> Lease:
        return Lease(self._folder(checkpoint))

    def _folder(self, key: str) -> Path:
        folder = self._storage.local_path(key)
        if folder is None:
            raise RuntimeError(f"{self._storage.uri(key)} is not in a folder")
        return folder

    def _partial(self, key: str) -> Path:
        folder = self._folder(key)
        return folder.with_name(f"{folder.name}.partial")
