"""Objects on S3 and on servers that speak its protocol."""

from collections.abc import Iterator, Sequence
from typing import Any

from nbrl.infra.cloud_blobs import CloudBlobs

TRIES = 3  # of a request by botocore, so that one part of an upload or a short refusal does not begin all anew
READS = 2  # by s3fs, around those: for bodies that end early
PASSING = (409, 429, 500, 502, 503, 504)  # 409: another write of the same object is under way


class S3Blobs(CloudBlobs):
    """Credentials and endpoint come from the AWS_* variables."""

    scheme, package, extra, batch = "s3", "s3fs", "train", 1000

    def _connect(self) -> Any:
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
        more: dict[str, str] = {}
        while True:
            page = self._fs.call_s3("list_objects_v2", Bucket=self._bucket, Prefix=start, **more)
            yield from (found["Key"] for found in page.get("Contents", []))
            if not page.get("IsTruncated"):
                return
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def _remove(self, names: Sequence[str]) -> None:
        objects = {"Objects": [{"Key": name} for name in names], "Quiet": True}
        answer = self._fs.call_s3("delete_objects", Bucket=self._bucket, Delete=objects)
        for refused in answer.get("Errors", []):
            raise OSError(f"{refused.get('Key')}: {refused.get('Code')} {refused.get('Message', '')}")


def _status(error: Exception) -> int:
    """The HTTP status of an answer that s3fs made an error of; 0 where there was none."""
    from botocore.exceptions import ClientError

    cause = error.__cause__
    response: dict[str, Any] = cause.response if isinstance(cause, ClientError) else {}
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
