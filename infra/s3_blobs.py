"""Whole objects by key, on S3: a PUT, or the end of a multipart upload, is atomic."""

from functools import cached_property
from pathlib import Path
from typing import Any

READS = 3


class S3Blobs:
    """`root` is `bucket/prefix`. Credentials and endpoint come from the AWS_* environment, as with every AWS tool.

    A request that fails for want of the server or of the network is tried `attempts` times, with growing waits in between.
    """

    def __init__(self, root: str, attempts: int) -> None:
        self.root, self._attempts = root, attempts

    @cached_property
    def _fs(self) -> Any:
        import s3fs

        # No listing cache: others write to the same root. Checksums only as needed: not every S3 server knows the trailers.
        files = s3fs.S3FileSystem(
            skip_instance_cache=True,
            use_listings_cache=False,
            config_kwargs={
                "retries": {"total_max_attempts": self._attempts, "mode": "standard"},
                "connect_timeout": 10,
                "read_timeout": 60,
                "request_checksum_calculation": "when_required",
                "response_checksum_validation": "when_required",
            },
        )
        files.retries = READS  # its own, around those of the configuration: for bodies that end early
        return files

    def __getstate__(self) -> dict[str, Any]:
        # The file system opens its own connections wherever it is unpickled.
        return {"root": self.root, "_attempts": self._attempts}

    def _object(self, key: str) -> dict[str, str]:
        bucket, _, name = self._path(key).partition("/")
        return {"Bucket": bucket, "Key": name}

    def _path(self, key: str) -> str:
        return f"{self.root}/{key}" if key else self.root

    def read(self, key: str) -> bytes:
        return bytes(self._fs.cat_file(self._path(key)))

    def write(self, key: str, data: bytes) -> None:
        self._fs.pipe_file(self._path(key), data)

    def create(self, key: str, data: bytes) -> bool:
        try:
            self._fs.call_s3("put_object", **self._object(key), Body=data, IfNoneMatch="*")
        except OSError as error:
            if not isinstance(error, FileExistsError) and _status(error) not in (409, 412):
                raise
            # An answer that was lost on its way lets the next try meet what the first one wrote.
            return self.read(key) == data
        return True

    def put(self, key: str, source: Path) -> None:
        self._fs.put_file(str(source), self._path(key))

    def get(self, key: str, target: Path) -> None:
        self._fs.get_file(self._path(key), str(target))

    def exists(self, key: str) -> bool:
        try:
            self._fs.call_s3("head_object", **self._object(key))
        except FileNotFoundError:
            return False
        return True

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


def _status(error: OSError) -> int:
    """The HTTP status of an answer that s3fs made an error of; 0 where there was none."""
    from botocore.exceptions import ClientError

    cause = error.__cause__
    response: dict[str, Any] = cause.response if isinstance(cause, ClientError) else {}
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
