"""Objects on S3 and on servers that speak its protocol."""

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Any

from nbrl.infra.cloud_blobs import CloudBlobs

TRIES = 3  # of a request by botocore, so that one part of an upload or a short refusal does not begin all anew
READS = 2  # by s3fs, around those: for bodies that end early
PASSING = (409, 429, 500, 502, 503, 504)  # 409: another write of the same object is under way
ONCE = {"retry_total": 0}
AZURE_PASSING = (408, 429, 500, 502, 503, 504)


def s3_files() -> Any:
    """Return the fsspec file system of S3, which caches no listing. Credentials and endpoint come from the AWS_* variables."""
    import s3fs

    # Checksums only as needed: not every S3 server knows the trailers.
    files = s3fs.S3FileSystem(
        skip_instance_cache=True,
        use_listings_cache=False,
        config_kwargs={
            "retries": {"total_max_attempts": TRIES, "mode": "standard"},
            "connect_timeout": 10,
            "read_timeout": 60,
            "request_checksum_calculation": "when_required",
            "response_checksum_validation": "when_required",
        },
    )
    files.retries = READS
    return files


def s3_objects(files: Any, bucket: str, **request: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of a listing, page by page: who needs no more of them ends it."""
    more: dict[str, str] = {}
    while True:
        page = files.call_s3("list_objects_v2", Bucket=bucket, **request, **more)
        yield from page.get("Contents", [])
        if not page.get("IsTruncated"):
            return
        more = {"ContinuationToken": page["NextContinuationToken"]}


class S3Blobs(CloudBlobs):
    """Credentials and endpoint come from the AWS_* variables."""

    scheme, package, extra, batch = "s3", "s3fs", "train", 1000

    def _connect(self) -> Any:
        return s3_files()

    def _passes(self, error: Exception) -> bool:
        from botocore.exceptions import ConnectionError as NoConnectionError
        from s3fs.core import S3_RETRYABLE_ERRORS

        return isinstance(error, (NoConnectionError, *S3_RETRYABLE_ERRORS)) or _status(error) in PASSING

    def create(self, key: str, data: bytes) -> bool:
        try:
            return super().create(key, data)
        except OSError as error:
            if _status(error) not in (409, 412):
                raise
            return self.read(key) == data

    def _load(self, path: str) -> bytes:
        return bytes(self._fs.cat_file(path, max_concurrency=1))  # more than one asks for the size first

    def _find(self, name: str) -> None:
        self._fs.call_s3("head_object", Bucket=self._bucket, Key=name)

    def _names(self, start: str) -> Iterator[str]:
        yield from (found["Key"] for found in s3_objects(self._fs, self._bucket, Prefix=start))

    def _remove(self, names: Sequence[str]) -> None:
        objects = {"Objects": [{"Key": name} for name in names], "Quiet": True}
        answer = self._fs.call_s3("delete_objects", Bucket=self._bucket, Delete=objects)
        for refused in answer.get("Errors", []):
            raise OSError(f"{refused.get('Key')}: {refused.get('Code')} {refused.get('Message', '')}")


def _status(error: Exception) -> int:
    """Return the HTTP status of an answer that s3fs made an error of; 0 where there was none."""
    from botocore.exceptions import ClientError

    cause = error.__cause__
    response: dict[str, Any] = cause.response if isinstance(cause, ClientError) else {}
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))


class GsBlobs(CloudBlobs):
    """Credentials are Google's default ones, as GOOGLE_APPLICATION_CREDENTIALS or the machine's account."""

    scheme, package, extra, batch = "gs", "gcsfs", "gs", 100
    get_options = {"concurrency": 1}  # noqa: RUF012  # more than one asks for the size first

    def _connect(self) -> Any:
        from aiohttp import ClientTimeout
        from gcsfs.core import GCSFileSystem  # of plain buckets: the other one asks every bucket for its kind, over gRPC

        logging.getLogger("gcsfs").setLevel(logging.CRITICAL)  # it would write a trace of what is raised as well
        patience = ClientTimeout(total=None, sock_connect=10, sock_read=60)  # a large object takes its time
        return GCSFileSystem(skip_instance_cache=True, use_listings_cache=False, requests_timeout=patience)

    def _passes(self, error: Exception) -> bool:
        from gcsfs.retry import is_retriable

        return isinstance(error, TimeoutError) or bool(is_retriable(error))

    def _find(self, name: str) -> None:
        self._fs.call("GET", "b/{}/o/{}", self._bucket, name, fields="name")

    def _names(self, start: str) -> Iterator[str]:
        token: str | None = ""
        while token is not None:
            query = {"prefix": start, "pageToken": token or None, "fields": "items/name,nextPageToken"}
            page = self._fs.call("GET", "b/{}/o", self._bucket, json_out=True, **query)
            yield from (found["name"] for found in page.get("items", []))
            token = page.get("nextPageToken")

    def _remove(self, names: Sequence[str]) -> None:
        with contextlib.suppress(FileNotFoundError):  # none of them was there
            self._fs.rm([f"{self._bucket}/{name}" for name in names], batchsize=self.batch)


class AzureBlobs(CloudBlobs):
    """`root` is `container/prefix`. Account and credentials come from the AZURE_STORAGE_* variables.

    Operations that take adlfs several requests, or a minute of tries of its own, use the client of Azure that it opened.
    """

    scheme, package, extra, batch = "az", "adlfs", "az", 50
    write_options = ONCE

    def _connect(self) -> Any:
        import adlfs

        return adlfs.AzureBlobFileSystem(
            skip_instance_cache=True, use_listings_cache=False, connection_timeout=10, read_timeout=60
        )

    def _passes(self, error: Exception) -> bool:
        from azure.core.exceptions import HttpResponseError, ServiceRequestError, ServiceResponseError

        if isinstance(error, HttpResponseError):
            return error.status_code in AZURE_PASSING
        return isinstance(error, ServiceRequestError | ServiceResponseError)

    def _ask(self, question: Any) -> Any:
        """Return the answer to a coroutine function of the container's client."""
        from fsspec.asyn import sync

        async def asked() -> Any:
            async with self._fs.service_client.get_container_client(self._bucket) as container:
                return await question(container)

        return sync(self._fs.loop, asked)

    def _load(self, path: str) -> bytes:
        from azure.core.exceptions import ResourceNotFoundError

        async def loaded(container: Any) -> bytes:
            stream = await container.download_blob(path.partition("/")[2], **ONCE)
            return bytes(await stream.readall())

        try:
            return bytes(self._ask(loaded))
        except ResourceNotFoundError as error:
            raise FileNotFoundError(path) from error

    def _find(self, name: str) -> None:
        async def found(container: Any) -> bool:
            return bool(await container.get_blob_client(name).exists(**ONCE))

        if not self._ask(found):
            raise FileNotFoundError(name)

    def _names(self, start: str) -> Iterator[str]:
        async def named(container: Any) -> list[str]:
            return [name async for name in container.list_blob_names(name_starts_with=start, **ONCE)]

        yield from self._ask(named)

    def _remove(self, names: Sequence[str]) -> None:
        """Delete with one request for each object, all at once: not every server of this protocol takes a batch."""
        from azure.core.exceptions import ResourceNotFoundError

        async def removed(container: Any) -> list[BaseException | None]:
            return await asyncio.gather(*(container.delete_blob(name, **ONCE) for name in names), return_exceptions=True)

        for error in self._ask(removed):
            if error is not None and not isinstance(error, ResourceNotFoundError):
                raise error
