"""Counts operations of a storage and the seconds within them, however they are nested and in whatever thread."""

import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from nbrl.infra.blobs import LocalBlobs
from nbrl.infra.storage import Storage
from nbrl.tasks.learner.checkpoint import identity
from nbrl.tasks.learner.checkpoint.cloud_store import CloudCheckpoints
from nbrl.tasks.learner.checkpoint.local_store import LocalCheckpoints
from nbrl.tasks.nodes import update
from nbrl.tasks.runs import results

OPERATIONS = ("read", "write", "create", "put", "get", "exists", "list", "delete", "delete_keys")  # of a folder
METHODS = (
    *("read_bytes", "read_table", "read_json", "write_bytes", "write_table", "write_json", "create_bytes", "create_json"),
    *("exists", "list", "delete", "delete_keys", "upload_part", "download_folder"),
)


class Stopwatch:
    """Only what happens while it is `watching` counts; of nested spans only the outermost."""

    def __init__(self) -> None:
        self._lock, self._inside, self._watching = threading.Lock(), threading.local(), False
        self.operations = 0
        self.spans: dict[str, float] = {}

    @property
    def seconds(self) -> float:
        return sum(self.spans.values())

    @contextmanager
    def watching(self) -> Iterator[None]:
        self.operations, self.spans, self._watching = 0, defaultdict(float), True
        try:
            yield
        finally:
            self._watching = False

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        outermost = not getattr(self._inside, "now", False)
        self._inside.now = True
        started = time.perf_counter()
        try:
            yield
        finally:
            if outermost:
                self._inside.now = False
                with self._lock:
                    if self._watching:
                        self.spans[name] += time.perf_counter() - started

    def wrap_storage(self) -> None:
        """Watch all operations of storages, and what else the durability of an iteration costs."""
        for name in METHODS:
            self._wrap(Storage, name)
        shelves = [(kind, "finish") for kind in (LocalCheckpoints, CloudCheckpoints)]
        for owner, name in (*shelves, (results, "find"), (results, "keep"), (update, "part_digest"), (identity, "order_digest")):
            self._wrap(owner, name)
        for name in OPERATIONS:
            self._count(name)

    def _wrap(self, owner: Any, name: str) -> None:
        original = getattr(owner, name)

        @wraps(original)
        def watched(*args: Any, **kwargs: Any) -> Any:
            with self.span(name):
                return original(*args, **kwargs)

        setattr(owner, name, watched)

    def _count(self, name: str) -> None:
        original = getattr(LocalBlobs, name)

        @wraps(original)
        def counted(*args: Any, **kwargs: Any) -> Any:
            with self._lock:
                self.operations += 1
            return original(*args, **kwargs)

        setattr(LocalBlobs, name, counted)
