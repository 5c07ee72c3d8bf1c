"""Objects on Google Cloud Storage."""

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Any

from nbrl.infra.cloud_blobs import CloudBlobs


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
            asked = {"prefix": start, "pageToken": token or None, "fields": "items/name,nextPageToken"}
            page = self._fs.call("GET", "b/{}/o", self._bucket, json_out=True, **asked)
            yield from (found["name"] for found in page.get("items", []))
            token = page.get("nextPageToken")

    def _remove(self, names: Sequence[str]) -> None:
        with contextlib.suppress(FileNotFoundError):  # none of them was there
            self._fs.rm([f"{self._bucket}/{name}" for name in names], batchsize=self.batch)
