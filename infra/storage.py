"""Immutable artifacts under one root, a local folder or a cloud's `s3://bucket/prefix`, addressed by key.

Invariants: what is read was written whole; every write answers with the SHA-256 of what it wrote; a folder exists once its
manifest does, and its manifest is written last. A storage is small, holds no connection and pickles, for use inside Ray workers.
"""

import contextlib
import hashlib
import importlib.util
import io
import shlex
import shutil
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from pydantic import Field

from nbrl.infra.blobs import Blobs, LocalBlobs
from nbrl.infra.closed import ClosedModel, acts_if
from nbrl.infra.cloud_blobs import CloudBlobs
from nbrl.infra.errors import DamagedError, MissingError, StorageError
from nbrl.infra.home import ROOT
from nbrl.infra.manifest import MANIFEST, PARALLEL, digests_of, file_sha256, read_manifest
from nbrl.infra.parse import seal, unseal
from nbrl.infra.parts import INDEX, PART, joined
from nbrl.infra.paths import NotRegularError, expanded
from nbrl.infra.s3_blobs import AzureBlobs, GsBlobs, S3Blobs

if TYPE_CHECKING:
    import pyarrow as pa

UNFINISHED_S = 3600.0  # a file without a write for so long is no write in progress
PATIENCE_S = 120.0  # an outage of a minute is a pause, whatever was under way


class StorageSettings(ClosedModel):
    """The place of runs, evaluations and checkpoints."""

    root: str = Field(
        ROOT,
        description="a folder, or s3://bucket/prefix, gs://bucket/prefix or az://container/prefix; when not set, "
        "`storage` in `home`",
    )
    shared: bool = Field(
        False,
        description="set it where a cluster is joined (ray.address) and root is a folder that every machine of it sees at the "
        "same path, as on a network file system",
        json_schema_extra=acts_if("ray.address"),
    )

    @property
    def option(self) -> str:
        """Return the option with which commands find this storage; empty for the usual one."""
        return "" if self.root == ROOT else f" --root {shlex.quote(self.root)}"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def encode(table: "pa.Table") -> bytes:
    """Return the table as Parquet."""
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()


_OVERWRITING: set[str] = set()  # roots on servers that were found to ignore the condition of a conditional write


class Storage:
    """Every method raises StorageError if the storage fails or does not answer."""

    def __init__(self, settings: StorageSettings, patience_s: float = PATIENCE_S) -> None:
        """Open a storage. `patience_s`: how long a request to a cloud that gets no answer is tried again."""
        self.settings = settings
        self._blobs = _blobs(settings.root, patience_s)

    @property
    def is_local(self) -> bool:
        """Return whether the root is a folder of this machine."""
        return isinstance(self._blobs, LocalBlobs)

    def read_bytes(self, key: str, digest: str = "") -> bytes:
        """Return the object. Raises MissingError, and DamagedError if a `digest` is given and is not its SHA-256."""
        key = _checked(key)
        with self._named("read", key):
            try:
                data = self._blobs.read(key)
            except FileNotFoundError as error:
                raise MissingError(f"{self._blobs.uri(key)} does not exist") from error
        if digest and sha256(data) != digest:
            raise DamagedError(f"{self._blobs.uri(key)} is damaged: it is not what was written there; bring it back from a copy")
        return data

    def write_bytes(self, key: str, data: bytes) -> str:
        """Write all of `data` or nothing; returns its SHA-256."""
        key = _checked(key)
        with self._named("write", key):
            self._blobs.write(key, data)
        return sha256(data)

    def create_bytes(self, key: str, data: bytes) -> bool:
        """Write `data` unless the object exists; returns whether it was written.

        Where `creates_once` found that the server ignores the condition, the object is looked for first.
        """
        key = _checked(key)
        if self.settings.root in _OVERWRITING and self.exists(key):
            return False
        with self._named("write", key):
            return self._blobs.create(key, data)

    def creates_once(self) -> bool:
        """Write a probe and remove it. Returns whether the server keeps an existing object: not every one does.

        Raises StorageError when nothing can be written.
        """
        probe = f".probe-{uuid.uuid4().hex}"
        with self._named("write", probe):
            once = self._blobs.create(probe, b"first") and not self._blobs.create(probe, b"second")
        self.delete_keys([probe])
        if not once:
            _OVERWRITING.add(self.settings.root)
        return once

    def exists(self, key: str) -> bool:
        """Return whether the object exists. Raises if that cannot be determined, so that nothing is mistaken for absent."""
        key = _checked(key)
        with self._named("look for", key):
            return self._blobs.exists(key)

    def list(self, prefix: str = "") -> list[str]:
        """Return keys of all objects below the folder `prefix`, sorted."""
        prefix = _checked(prefix) if prefix else ""
        with self._named("list", prefix):
            return self._blobs.list(prefix)

    def sizes(self, prefix: str) -> dict[str, int] | None:
        """Return the bytes of all objects below the folder `prefix`, by key; None in a cloud, where each would take a request."""
        if not isinstance(self._blobs, LocalBlobs):
            return None
        sizes: dict[str, int] = {}
        for key in self.list(prefix):
            with self._named("look at", key), contextlib.suppress(FileNotFoundError):  # deleted meanwhile
                sizes[key] = self._blobs.path(key).lstat().st_size
        return sizes

    def delete(self, prefix: str) -> None:
        """Delete an object, or a folder with all its contents; does nothing if there is none."""
        prefix = _checked(prefix)
        with self._named("delete", prefix):
            self._blobs.delete(prefix)

    def delete_keys(self, keys: Iterable[str]) -> None:
        """Delete objects without looking for them, many in one request; those that do not exist are skipped."""
        if keys := [_checked(key) for key in keys]:
            with self._named("delete", keys[0]):
                self._blobs.delete_keys(keys)

    def delete_unfinished(self, prefix: str) -> None:
        """Delete what killed processes left half-written below a folder, an hour after the last change; a cloud keeps none."""
        prefix = _checked(prefix)
        if isinstance(self._blobs, LocalBlobs):
            with self._named("clear", prefix):
                self._blobs.delete_unfinished(prefix, UNFINISHED_S)

    @contextmanager
    def _named(self, verb: str, key: str) -> Iterator[None]:
        """Turn a library's exception into a StorageError that names the object; a DamagedError where it is no file or folder."""
        try:
            yield
        except (StorageError, MemoryError):
            raise
        except NotRegularError as error:
            raise DamagedError(f"cannot {verb} {self._blobs.uri(key)}: {error}") from error
        except Exception as error:
            raise StorageError(f"cannot {verb} {self._blobs.uri(key)}: {str(error) or type(error).__name__}") from error

    def uri(self, key: str) -> str:
        return self._blobs.uri(_checked(key))

    def local_path(self, key: str) -> Path | None:
        """Return the object's path on this machine, for callers that must open it in place; None in a cloud."""
        if not isinstance(self._blobs, LocalBlobs):
            return None
        with self._named("open", key):
            return self._blobs.inside(_checked(key))

    def read_table(self, key: str, digest: str = "") -> "pa.Table":
        """Read a table, from its parts if the key is that of an index. Raises as `read_bytes`, and DamagedError for no table."""
        return joined(self.read_index(key, digest), self._parquet) if key.endswith(INDEX) else self._parquet(key, digest)

    def read_index(self, key: str, digest: str = "") -> "pa.Table":
        """Return the index of a table in parts, which lie below the folder of its run; see nbrl.infra.arrow_files."""
        index, folder = self._parquet(key, digest), "/".join(_checked(key).split("/")[:-1][:2])
        for part in index[PART].unique().to_pylist() if PART in index.column_names else ():
            if not (isinstance(part, str) and part.startswith(f"{folder}/" if folder else "") and ".." not in part.split("/")):
                raise DamagedError(
                    f"{self.uri(key)} names {part!r}, which does not lie below {folder}; bring it back from a copy"
                )
        return index

    def _parquet(self, key: str, digest: str) -> "pa.Table":
        import pyarrow as pa

        from nbrl.infra.arrow_files import UnfitTableError, read_parquet

        data = self.read_bytes(key, digest)
        try:
            return read_parquet(io.BytesIO(data))
        except MemoryError:
            raise
        except (pa.ArrowException, OSError, UnfitTableError) as error:
            reason = " ".join(str(error).split())
            raise DamagedError(f"{self.uri(key)} is damaged: it is no table ({reason}); bring it back from a copy") from error

    def read_json(self, key: str) -> dict[str, Any]:
        """Return the fields that `write_json` or `create_json` wrote. Raises MissingError and DamagedError."""
        return unseal(self.read_bytes(key), self.uri(key))

    def write_json(self, key: str, fields: dict[str, Any]) -> str:
        """Write fields as JSON with their digest, as `write_bytes` does."""
        return self.write_bytes(key, seal(fields))

    def create_json(self, key: str, fields: dict[str, Any]) -> bool:
        """Create fields as JSON with their digest, as `create_bytes` does."""
        return self.create_bytes(key, seal(fields))

    def write_table(self, key: str, table: "pa.Table") -> str:
        """Write a table as Parquet; returns the SHA-256 of its bytes."""
        return self.write_bytes(key, encode(table))

    def read_manifest(self, prefix: str) -> dict[str, str]:
        """Return the SHA-256 of all files of a stored folder, by name. Raises MissingError and DamagedError."""
        key = f"{_checked(prefix)}/{MANIFEST}"
        return read_manifest(self.read_bytes(key), self.uri(key))

    def upload_part(self, source: Path, prefix: str) -> dict[str, str]:
        """Copy a folder's files below `prefix`, where others store further parts; returns the SHA-256 of each by its name.

        The folder exists once its manifest, of all parts, is written.
        """
        digests, below = digests_of(source), _checked(prefix)
        with ThreadPoolExecutor(PARALLEL) as pool, self._named("store", below):
            list(pool.map(lambda name: self._blobs.put(f"{below}/{name}", source / name), digests))
        return digests

    def download_folder(self, prefix: str, target: Path, below: str = "") -> Path:
        """Download a folder and check it against its manifest; `target` is replaced once the download is complete.

        With `below`, only the files of that subfolder come, at the same places.
        """
        prefix = _checked(prefix)
        listed = self.read_bytes(f"{prefix}/{MANIFEST}")
        manifest = read_manifest(listed, self.uri(f"{prefix}/{MANIFEST}"))
        chosen = {name: digest for name, digest in manifest.items() if not below or name.startswith(f"{below}/")}
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))

        def bring(name: str, digest: str) -> None:
            path = partial / name
            path.parent.mkdir(parents=True, exist_ok=True)
            self._blobs.get(f"{prefix}/{name}", path)
            if file_sha256(path) != digest:
                raise DamagedError(f"{self.uri(f'{prefix}/{name}')} is not what its manifest says; bring it back from a copy")

        try:
            with ThreadPoolExecutor(PARALLEL) as pool:
                list(pool.map(bring, chosen.keys(), chosen.values()))
            (partial / MANIFEST).write_bytes(listed)
            shutil.rmtree(target, ignore_errors=True)
            partial.rename(target)
        except StorageError:
            raise
        except Exception as error:
            raise StorageError(f"cannot bring {self.uri(prefix)} to {target}: {error}") from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return target


def _blobs(root: str, patience_s: float) -> Blobs:
    """Return the blobs of a root. Raises StorageError for one of no known kind, or whose package is not installed."""
    scheme, separator, rest = root.partition("://")
    if not separator:
        return LocalBlobs(expanded(root))
    cloud: type[CloudBlobs]
    match scheme:
        case "s3":
            cloud = S3Blobs
        case "gs":
            cloud = GsBlobs
        case "az" | "abfs":
            cloud = AzureBlobs
        case _:
            raise StorageError(f"storage.root {root!r} is neither a folder nor an address with s3://, gs:// or az://")
    if not rest.strip("/"):
        raise StorageError(f"storage.root {root!r} names no bucket; write it as {cloud.scheme}://bucket/prefix")
    if importlib.util.find_spec(cloud.package) is None:
        raise StorageError(f"storage.root {root} needs {cloud.package}: pip install 'nbrl[{cloud.extra}]'")
    return cloud(rest.strip("/"), patience_s)


def _checked(key: str) -> str:
    path = PurePosixPath(key)
    if not key or path.is_absolute() or ".." in path.parts:
        raise StorageError(f"{key!r} is not a key: keys are relative, like runs/a/config.yaml")
    return str(path)
