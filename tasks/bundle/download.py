"""Fetches a published run from a web address: its list first, then what that names, each file with the size that it says."""

import hashlib
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
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
    return urlsplit(text).scheme in ("http", "https")


def download(address: str, folder: Path, most_gb: float) -> FileList:
    """Fetch a published run into a new folder and return its list. No redirect is followed to another host.

    Raises ConfigError where its files have more than `most_gb` gigabytes, DamagedError where one is not what the list says, and
    InfraError where the server does not answer.
    """
    base = address.rstrip("/").removesuffix(f"/{CONTENTS}")
    with httpx.Client(timeout=TIMEOUT_S, follow_redirects=False, trust_env=True) as client:
        text = _fetched(client, f"{base}/{CONTENTS}", LARGEST_LIST)
        assert text is not None
        contents = parsed(text, f"{base}/{CONTENTS}")
        check_size(base, contents, most_gb)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CONTENTS).write_bytes(text)
        if (signature := _fetched(client, f"{base}/{SIGNATURE}", LARGEST, optional=True)) is not None:
            (folder / SIGNATURE).write_bytes(signature)
        until = time.monotonic() + TIMEOUT_S + contents.size / SLOWEST + len(contents.files) / FEWEST
        threads = ThreadPoolExecutor(AT_ONCE)
        try:
            list(threads.map(lambda item: _file(client, base, folder, until, *item), sorted(contents.files.items())))
        finally:
            threads.shutdown(cancel_futures=True)
    return contents


def _file(client: httpx.Client, base: str, folder: Path, until: float, path: str, wanted: ListedFile) -> None:
    """Fetch a file, no byte more than the list says of it."""
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    digest, size, where = hashlib.sha256(), 0, f"{base}/{quote(path)}"
    try:
        with client.stream("GET", where) as answer, target.open("xb") as file:
            _check(answer, where)
            for block in chain([b""], answer.iter_raw()):  # an empty file has no block
                size += len(block)
                if time.monotonic() > until:
                    raise _too_slow(base)
                if size > wanted.size:
                    break
                digest.update(block)
                file.write(block)
    except (httpx.HTTPError, OSError) as error:
        raise InfraError(f"{where} cannot be fetched: {type(error).__name__}: {shortened(error)}") from error
    if (size, digest.hexdigest()) != (wanted.size, wanted.sha256):
        raise DamagedError(f"{where} is not the file that the list names: its size or digest is another")


def _fetched(client: httpx.Client, where: str, most: int, optional: bool = False) -> bytes | None:
    """Return what lies at an address, of at most so many bytes; None where an optional one is not there."""
    until = time.monotonic() + TIMEOUT_S
    try:
        with client.stream("GET", where) as answer:
            if optional and answer.status_code in (403, 404):
                return None
            _check(answer, where)
            found = bytearray()
            for block in answer.iter_raw():
                found += block
                if len(found) > most:
                    raise DamagedError(f"{where} has more than {most} bytes")
                if time.monotonic() > until + len(found) / SLOWEST:
                    raise _too_slow(where)
            return bytes(found)
    except httpx.HTTPError as error:
        raise InfraError(f"{where} cannot be fetched: {type(error).__name__}: {shortened(error)}") from error


def _too_slow(where: str) -> InfraError:
    return InfraError(
        f"{where} takes too long: less than {SLOWEST // 1000} kB and {FEWEST} files came in a second; fetch it yourself"
    )


def _check(answer: httpx.Response, where: str) -> None:
    if answer.status_code != httpx.codes.OK:
        raise ConfigError(f"{where} answers {answer.status_code}; name the address of the folder that holds {CONTENTS}")
    if answer.headers.get("content-encoding", "identity") != "identity":
        raise ConfigError(f"{where} comes compressed, which is not unpacked; serve the files as they are")
