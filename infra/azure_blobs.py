"""Objects on Azure Blob Storage."""

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

from nbrl.infra.cloud_blobs import CloudBlobs

ONCE = {"retry_total": 0}
PASSING = (408, 429, 500, 502, 503, 504)


class AzureBlobs(CloudBlobs):
    """`root` is `container/prefix`. Account and credentials come from the AZURE_STORAGE_* variables.

    What takes adlfs several requests, or a minute of tries of its own, goes to the client of Azure that it opened.
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
            return error.status_code in PASSING
        return isinstance(error, ServiceRequestError | ServiceResponseError)

    def _ask(self, question: Any) -> Any:
        """The answer to a coroutine function of the container's client."""
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
        """One request for each, all at once: a batch of Azure's is not understood by every server that speaks its protocol."""
        from azure.core.exceptions import ResourceNotFoundError

        async def removed(container: Any) -> list[BaseException | None]:
            return await asyncio.gather(*(container.delete_blob(name, **ONCE) for name in names), return_exceptions=True)

        for error in self._ask(removed):
            if error is not None and not isinstance(error, ResourceNotFoundError):
                raise error
