"""Whole objects by key, in a bucket: what all clouds have in common, over fsspec.

A write is atomic: an object appears when its one request, or the last one of an upload in parts, has succeeded.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, TypeVar

T = TypeVar("T")
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 10.0


class CloudBlobs(ABC):
    """`root` is `bucket/prefix`. Credentials and addresses come from the environment, as with each cloud's own tools.

    A request that fails for want of the server or of the network is tried again, with growing waits, for `patience_s`. The
    library's own tries do not do for that: many requests at once share a budget of them, which is used up within seconds.
    """

    scheme: ClassVar[str]
    package: ClassVar[str]  # that gives the fsspec file system
    extra: ClassVar[str]  # of nbrl, which installs it
    batch: ClassVar[int]  # keys that are deleted together
    write_options: ClassVar[dict[str, int]] = {}  # of pipe_file
    get_options: ClassVar[dict[str, int]] = {}  # of get_file

    def __init__(self, root: str, patience_s: float) -> None:
        self.root, self._patience_s = root, patience_s

    @abstractmethod
    def _connect(self) -> Any:
        """Return the fsspec file system. It caches no listing: others write to the same root."""

    @abstractmethod
    def _passes(self, error: Exception) -> bool:
        """Return whether the request may succeed when it is tried again."""

    @abstractmethod
    def _find(self, name: str) -> None:
        """Ask for an object of the bucket, in one request. Raises FileNotFoundError."""

    @abstractmethod
    def _names(self, start: str) -> Iterator[str]:
        """Yield the names of the bucket's objects that start like this."""

    @abstractmethod
    def _remove(self, names: Sequence[str]) -> None:
        """Delete up to `batch` objects of the bucket. Raises unless all are gone."""

    def _load(self, path: str) -> bytes:
        """Read an object, in one request. Raises FileNotFoundError."""
        return bytes(self._fs.cat_file(path))

    @cached_property
    def _fs(self) -> Any:
        return self._connect()

    def __getstate__(self) -> dict[str, Any]:
        # The file system opens its own connections wherever it is unpickled.
        return {"root": self.root, "_patience_s": self._patience_s}

    @property
    def _bucket(self) -> str:
        return self.root.partition("/")[0]

    def _path(self, key: str) -> str:
        return f"{self.root}/{key}" if key else self.root

    def _name(self, key: str) -> str:
        """Return the name of an object within the bucket."""
        return self._path(key).partition("/")[2]

    def _patiently(self, request: Callable[[], T]) -> T:
        end, wait = math.inf, FIRST_WAIT_S
        while True:
            try:
                return request()
            except Exception as error:
                end = min(end, time.monotonic() + self._patience_s)  # from the first failure: a large upload takes long by itself
                if not self._passes(error) or time.monotonic() + wait > end:
                    raise
            time.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT_S)

    def read(self, key: str) -> bytes:
        return self._patiently(lambda: self._load(self._path(key)))

    def write(self, key: str, data: bytes) -> None:
        self._patiently(lambda: self._fs.pipe_file(self._path(key), data, **self.write_options))

    def create(self, key: str, data: bytes) -> bool:
        try:
            self._patiently(lambda: self._fs.pipe_file(self._path(key), data, mode="create", **self.write_options))
        except FileExistsError:
            # An answer that was lost on its way lets the next try meet what the first one wrote.
            return self.read(key) == data
        return True

    def put(self, key: str, source: Path) -> None:
        self._patiently(lambda: self._fs.put_file(str(source), self._path(key)))

    def get(self, key: str, target: Path) -> None:
        self._patiently(lambda: self._fs.get_file(self._path(key), str(target), **self.get_options))

    def exists(self, key: str) -> bool:
        try:
            self._patiently(lambda: self._find(self._name(key)))
        except FileNotFoundError:
            return False
        return True

    def list(self, prefix: str) -> list[str]:
        start, cut = self._name(prefix), len(self._name("")) + 1 if self._name("") else 0
        names = self._patiently(lambda: list(self._names(f"{start}/" if start else "")))
        return sorted(name[cut:] for name in names)

    def delete(self, prefix: str) -> None:
        if below := self.list(prefix):
            self.delete_keys(below)
        elif self.exists(prefix):  # some servers refuse to delete a key that is a folder of theirs, as a cut upload leaves one
            self.delete_keys([prefix])

    def delete_keys(self, keys: Sequence[str]) -> None:
        names = [self._name(key) for key in keys]
        for first in range(0, len(names), self.batch):
            self._patiently(lambda part=names[first : first + self.batch]: self._remove(part))  # type: ignore[misc]

    def uri(self, key: str) -> str:
        return f"{self.scheme}://{self._path(key)}"
