"""Whole objects by key, on a local folder or on S3: the two places a storage root can be.

Invariant of both: an object is either absent or whole. Locally by writing a temporary file and renaming it (which survives the
death of any process, kill -9 included, though not a power cut); on S3 because a PUT, or the end of a multipart upload, is atomic.
"""

import contextlib
import os
import shutil
import tempfile
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

TEMPORARY = ".writing-"


class Blobs(Protocol):
    def read(self, key: str) -> bytes: ...
    def write(self, key: str, data: bytes) -> None: ...
    def put(self, key: str, source: Path) -> None: ...
    def get(self, key: str, target: Path) -> None: ...
    def exists(self, key: str) -> bool: ...
    def list(self, prefix: str) -> list[str]: ...
    def delete(self, prefix: str) -> None: ...
    def uri(self, key: str) -> str: ...


class LocalBlobs:
    def __init__(self, root: Path) -> None:
        self.root = root.absolute()

    def path(self, key: str) -> Path:
        return self.root / key

    @contextlib.contextmanager
    def _replacing(self, key: str) -> Any:
        target = self.path(key)
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=TEMPORARY, dir=target.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
            os.replace(temporary, target)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise

    def read(self, key: str) -> bytes:
        return self.path(key).read_bytes()

    def write(self, key: str, data: bytes) -> None:
        with self._replacing(key) as file:
            file.write(data)

    def put(self, key: str, source: Path) -> None:
        with self._replacing(key) as target, source.open("rb") as file:
            shutil.copyfileobj(file, target, 1 << 20)

    def get(self, key: str, target: Path) -> None:
        shutil.copyfile(self.path(key), target)

    def exists(self, key: str) -> bool:
        return self.path(key).is_file()

    def list(self, prefix: str) -> list[str]:
        found = []
        for folder, _, names in os.walk(self.path(prefix)):
            relative = Path(folder).relative_to(self.root)
            found += [(relative / name).as_posix() for name in names if not name.startswith(TEMPORARY)]
        return sorted(found)

    def delete(self, prefix: str) -> None:
        path = self.path(prefix)
        if path.is_dir():
            # Renamed first: a reader sees all of a folder or nothing of it.
            grave = Path(tempfile.mkdtemp(prefix=TEMPORARY, dir=path.parent)) / path.name
            path.rename(grave)
            shutil.rmtree(grave.parent)
        else:
            path.unlink(missing_ok=True)

    def uri(self, key: str) -> str:
        return str(self.path(key))


class S3Blobs:
    """`root` is `bucket/prefix`. Credentials and endpoint come from the AWS_* environment, as with every AWS tool."""

    def __init__(self, root: str) -> None:
        self.root = root

    @cached_property
    def _fs(self) -> Any:
        import s3fs

        # No listing cache: others write to the same root. Checksums only as needed: not every S3 server knows the trailers.
        return s3fs.S3FileSystem(
            skip_instance_cache=True,
            use_listings_cache=False,
            config_kwargs={
                "connect_timeout": 10,
                "read_timeout": 60,
                "request_checksum_calculation": "when_required",
                "response_checksum_validation": "when_required",
            },
        )

    def __getstate__(self) -> dict[str, Any]:
        return {"root": self.root}  # the file system opens its own connections wherever it is unpickled

    def _path(self, key: str) -> str:
        return f"{self.root}/{key}" if key else self.root

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
        start = len(self.root) + 1
        return sorted(path[start:] for path in self._fs.find(self._path(prefix)))

    def delete(self, prefix: str) -> None:
        keys = self.list(prefix)
        if self.exists(prefix):
            keys.append(prefix)
        if keys:
            self._fs.rm([self._path(key) for key in keys])

    def uri(self, key: str) -> str:
        return f"s3://{self._path(key)}"
