"""How an iteration was stored before chunks, epochs and results of nodes: the same tables by another sequence of operations.

Every trajectory was an object of its own, read back by nobody and deleted one by one; what was read was not compared with a
digest; nothing was flushed to the disk; on S3 a checkpoint was uploaded, deleted here and downloaded again. Results of nodes lay
outside the storage.
"""

import contextlib
import hashlib
import io
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from nbrl.infra.blobs import TEMPORARY, LocalBlobs
from nbrl.infra.manifest import MANIFEST, PARALLEL, file_sha256
from nbrl.infra.storage import encode

WRITERS = min(32, (os.cpu_count() or 1) + 4)  # threads in which finished trajectories were written


@dataclass(frozen=True)
class Made:
    """What an iteration that happened made, and the seconds that it took. `run` is the folder of its run."""

    run: Path
    prompts: pa.Table
    trajectories: pa.Table
    rewards: pa.Table
    selection: pa.Table
    advantages: pa.Table
    update: bytes
    record: bytes
    checkpoint: Path
    seconds: float


class Blobs(Protocol):
    """What the older way asked of a storage."""

    def read(self, key: str) -> bytes: ...
    def write(self, key: str, data: bytes) -> None: ...
    def put(self, key: str, source: Path) -> None: ...
    def get(self, key: str, target: Path) -> None: ...
    def exists(self, key: str) -> bool: ...
    def list(self, prefix: str) -> list[str]: ...
    def delete(self, prefix: str) -> None: ...


class Folder(LocalBlobs):
    """A local folder, of which nothing is flushed."""

    @contextlib.contextmanager
    def _replacing(self, key: str, place: Callable[[str, Path], None] = os.replace) -> Iterator[IO[bytes]]:
        target = self.path(key)
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=TEMPORARY, dir=target.parent)
        with os.fdopen(descriptor, "wb") as file:
            yield file
        place(temporary, target)


class Bucket:
    """S3 by s3fs, with the requests that its conveniences make."""

    def __init__(self, root: str) -> None:
        import s3fs

        checksums = {"request_checksum_calculation": "when_required", "response_checksum_validation": "when_required"}
        self._root = root
        self._fs: Any = s3fs.S3FileSystem(skip_instance_cache=True, use_listings_cache=False, config_kwargs=checksums)

    def _path(self, key: str) -> str:
        return f"{self._root}/{key}"

    def read(self, key: str) -> bytes:
        return bytes(self._fs.cat_file(self._path(key)))

    def write(self, key: str, data: bytes) -> None:
        self._fs.pipe_file(self._path(key), data)

    def put(self, key: str, source: Path) -> None:
        self._fs.put_file(str(source), self._path(key))

    def get(self, key: str, target: Path) -> None:
        self._fs.get_file(self._path(key), str(target))

    def exists(self, key: str) -> bool:
        return bool(self._fs.isfile(self._path(key)))

    def list(self, prefix: str) -> list[str]:
        return sorted(path[len(self._root) + 1 :] for path in self._fs.find(self._path(prefix)))

    def delete(self, prefix: str) -> None:
        keys = [*self.list(prefix), *([prefix] if self.exists(prefix) else [])]
        if keys:
            self._fs.rm([self._path(key) for key in keys])


def store(made: Made, blobs: Blobs, run: str, scratch: Path) -> None:
    """All that the nodes of an iteration of the run with this folder read and wrote, from sample to record."""
    stage = f"{run}/iterations/000001"
    round_, checkpoint = f"{stage}/round-0", f"{run}/checkpoints/000002"
    prompts, trajectories = f"{round_}/prompts.parquet", f"{round_}/trajectories.parquet"
    rewards, selection, advantages = f"{round_}/rewards.parquet", f"{round_}/selection.parquet", f"{stage}/advantages.parquet"
    blobs.exists(f"{stage}/record.json")
    _read(blobs, f"{run}/data/train.parquet")  # sample
    _write(blobs, prompts, made.prompts)
    _read(blobs, prompts)  # rollout
    _roll_out(made.trajectories, blobs, f"{round_}/trajectories")
    _write(blobs, trajectories, made.trajectories)
    for key in blobs.list(f"{round_}/trajectories"):
        blobs.delete(key)
    _read(blobs, trajectories)  # reward
    _read(blobs, prompts)
    _write(blobs, rewards, made.rewards)
    _read(blobs, rewards)  # select
    _write(blobs, selection, made.selection)
    _read(blobs, selection)  # advantage
    _read(blobs, rewards)
    _write(blobs, advantages, made.advantages)
    _read(blobs, advantages)  # update
    _read(blobs, trajectories)
    remote = isinstance(blobs, Bucket)
    if remote:
        _upload(made.checkpoint, blobs, checkpoint)
    blobs.write(f"{stage}/update/result.json", made.update)
    for weights in sorted((made.checkpoint / "hf").glob("*.safetensors")):
        file_sha256(weights)
    if remote:  # publish
        _download(blobs, checkpoint, scratch)
    blobs.read(f"{stage}/update/result.json")
    _read(blobs, trajectories)  # record
    blobs.write(f"{stage}/record.json", made.record)


def _roll_out(trajectories: pa.Table, blobs: Blobs, folder: str) -> None:
    blobs.list(folder)
    with ThreadPoolExecutor(WRITERS) as pool:
        rows = [trajectories.slice(number, 1) for number in range(len(trajectories))]
        list(pool.map(lambda row: _write(blobs, f"{folder}/{row['id'][0].as_py()}.parquet", row), rows))


def _upload(source: Path, blobs: Blobs, prefix: str) -> None:
    files = [path for path in sorted(source.rglob("*")) if path.is_file() and path.name != MANIFEST]
    names = [path.relative_to(source).as_posix() for path in files]
    with ThreadPoolExecutor(PARALLEL) as pool:
        list(pool.map(lambda name, path: blobs.put(f"{prefix}/{name}", path), names, files))
        digests = list(pool.map(file_sha256, files))
    blobs.write(f"{prefix}/{MANIFEST}", json.dumps(dict(zip(names, digests, strict=True)), indent=1).encode())


def _download(blobs: Blobs, prefix: str, target: Path) -> None:
    def bring(name: str, digest: str) -> None:
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        blobs.get(f"{prefix}/{name}", path)
        if file_sha256(path) != digest:
            raise RuntimeError(f"{prefix}/{name} is damaged")

    manifest: dict[str, str] = json.loads(blobs.read(f"{prefix}/{MANIFEST}"))
    with ThreadPoolExecutor(PARALLEL) as pool:
        list(pool.map(bring, manifest.keys(), manifest.values()))
    shutil.rmtree(target)


def _read(blobs: Blobs, key: str) -> pa.Table:
    return pq.read_table(io.BytesIO(blobs.read(key)))


def _write(blobs: Blobs, key: str, table: pa.Table) -> str:
    data = encode(table)
    blobs.write(key, data)
    return hashlib.sha256(data).hexdigest()
