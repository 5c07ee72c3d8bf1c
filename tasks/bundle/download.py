"""Fetches a published run from a web address: its list first, then what that names, each file with the size that it says."""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import quote, urlsplit

import httpx

from nbrl.infra.errors import DamagedError, InfraError, shortened
from nbrl.tasks.bundle.contents import CONTENTS, LARGEST_LIST, SIGNATURE, FileList, ListedFile, check_size, parsed
from nbrl.tasks.bundle.signature import LARGEST
from nbrl.tasks.errors import ConfigError

AT_ONCE, TIMEOUT_S = 8, 60.0
SLOWEST, FEWEST = 50_000, 20  # bytes and files a second, of all files together


def is_address(text: str) -> bool:
    """Return whether a text names a place on the web."""
    return text.lower().startswith(("http://", "https://"))


def download(address: str, folder: Path, most_gb: float) -> FileList:
    """Fetch a published run into a new folder and return its list. No redirect is followed.

    Raises ConfigError where its files have more than `most_gb` gigabytes, DamagedError where one is not what the list says, and
    InfraError where the server does not answer, or too slowly.
    """
    try:
        _ = httpx.URL(address).host.encode("idna"), urlsplit(address).port  # which raise ValueError
        if not httpx.URL(address).host:
            raise ValueError("it names no server")
        base = address.rstrip("/").removesuffix(f"/{CONTENTS}")
    except (ValueError, httpx.InvalidURL) as error:
        raise ConfigError(f"{address!r} is no address: {shortened(error)}") from error
    folder.mkdir(parents=True, exist_ok=True)
    return asyncio.run(_download(base, folder, most_gb))


async def _download(base: str, folder: Path, most_gb: float) -> FileList:
    async with httpx.AsyncClient(timeout=TIMEOUT_S, follow_redirects=False, trust_env=True) as client:
        text = await _fetched(client, f"{base}/{CONTENTS}", LARGEST_LIST)
        assert text is not None
        contents = parsed(text, f"{base}/{CONTENTS}")
        check_size(base, contents, most_gb)
        (folder / CONTENTS).write_bytes(text)
        if (signature := await _fetched(client, f"{base}/{SIGNATURE}", LARGEST, optional=True)) is not None:
            (folder / SIGNATURE).write_bytes(signature)
        left = iter(sorted(contents.files.items()))
        fetching = [asyncio.create_task(_files(client, base, folder, left)) for _ in range(AT_ONCE)]
        try:
            async with asyncio.timeout(TIMEOUT_S + contents.size / SLOWEST + len(contents.files) / FEWEST):
                await asyncio.gather(*fetching)
        except TimeoutError as error:
            raise _too_slow(base) from error
        finally:
            for task in fetching:
                task.cancel()
            await asyncio.gather(*fetching, return_exceptions=True)
    return contents


async def _files(client: httpx.AsyncClient, base: str, folder: Path, left: Iterator[tuple[str, ListedFile]]) -> None:
    """Fetch files until none is left, of each no byte more than the list says of it."""
    for path, wanted in left:
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        digest, size, where = hashlib.sha256(), 0, f"{base}/{quote(path)}"
        async with _answer(client, where) as answer:
            _check(answer, where)
            with target.open("xb") as file:
                async for block in answer.aiter_raw():
                    size += len(block)
                    if size > wanted.size:
                        break
                    digest.update(block)
                    file.write(block)
        if (size, digest.hexdigest()) != (wanted.size, wanted.sha256):
            raise DamagedError(f"{where} is not the file that the list names: its size or digest is another")


async def _fetched(client: httpx.AsyncClient, where: str, most: int, optional: bool = False) -> bytes | None:
    """Return what lies at an address, of at most so many bytes; None where an optional one is not there."""
    until, found = time.monotonic() + TIMEOUT_S, bytearray()
    async with _answer(client, where) as answer:
        if optional and answer.status_code in (httpx.codes.FORBIDDEN, httpx.codes.NOT_FOUND):
            return None
        _check(answer, where)
        async for block in answer.aiter_raw():
            found += block
            if len(found) > most:
                raise DamagedError(f"{where} has more than {most} bytes")
            if time.monotonic() > until + len(found) / SLOWEST:
                raise _too_slow(where)
    return bytes(found)


@asynccontextmanager
async def _answer(client: httpx.AsyncClient, where: str) -> AsyncIterator[httpx.Response]:
    """Ask for an address. Raises InfraError where the answer does not begin in time, or breaks off."""
    try:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                answer = await client.send(client.build_request("GET", where), stream=True)
        except TimeoutError as error:
            raise _too_slow(where) from error
        try:
            yield answer
        finally:
            await answer.aclose()
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        why = f": {shortened(error)}" if str(error) else ""
        raise InfraError(f"{where} cannot be fetched: {type(error).__name__}{why}") from error


def _too_slow(where: str) -> InfraError:
    slow = f"less than {SLOWEST // 1000} kB and {FEWEST} files came in a second"
    return InfraError(f"{where} takes too long: {slow}; fetch it yourself")


def _check(answer: httpx.Response, where: str) -> None:
    if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        raise ConfigError(f"{where} answers {answer.status_code}: the server may not show it; look at its rights and its owner")
    if answer.has_redirect_location:
        raise ConfigError(f"{where} answers {answer.status_code}, which leads elsewhere; name the address that it leads to")
    if answer.is_server_error:
        raise InfraError(f"{where} answers {answer.status_code}: the server is at fault; try again later")
    if answer.status_code != httpx.codes.OK:
        raise ConfigError(f"{where} answers {answer.status_code}; name the address of the folder that holds {CONTENTS}")
    if answer.headers.get("content-encoding", "identity") != "identity":
        raise ConfigError(f"{where} comes compressed, which is not unpacked; serve the files as they are")
