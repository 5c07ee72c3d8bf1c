"""Settings that name files by a path of this machine or by an address, whose files are brought here and then read as any."""

import os
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator

from nbrl.infra.errors import StorageError
from nbrl.infra.paths import expanded
from nbrl.infra.remote_files import SIGNS, copied
from nbrl.tasks.environments.csv_table import kind_of
from nbrl.tasks.errors import ConfigError

CACHE = "~/.cache/nbrl/files"
SCHEME = "://"
ADDRESSES = "s3://bucket/path or hf://datasets/owner/name/path"
_FORMS = {"s3": re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/.+"), "hf": re.compile(r"datasets/[\w.-]+/[\w.-]+(@[^/]+)?(/.+)?")}


def checked_address(address: str) -> str:
    """Return the address. Raises ValueError where none of its kind is read."""
    scheme, _, path = address.rstrip("/").partition(SCHEME)
    if scheme not in _FORMS:
        raise ValueError(
            f"{address} is an address of another kind than those that are read, {ADDRESSES}; fetch the file, then give its path"
        )
    *folders, _ = parts = path.split("/")
    if {"", ".", ".."}.intersection(parts) or not path.isprintable() or not _FORMS[scheme].fullmatch(path):
        raise ValueError(f"{address} is no address of files; write it as {ADDRESSES}")
    if any(sign in part for part in folders for sign in SIGNS):
        raise ValueError(f"{address} is a pattern of folders; only its last part may be one, as in train-*.parquet")
    return address


def _given(value: Any) -> Path | str:
    if isinstance(value, str):
        return checked_address(value) if SCHEME in value else Path(value)
    if not isinstance(value, Path):
        raise ValueError("it must be a path or an address")
    return value


FilesAt = Annotated[Path | str, BeforeValidator(_given)]
"""A path of this machine, or an address: the only kind of text that stays text."""


def meant(text: str) -> Path | str:
    """Return the address, or the path in full, that a command line gives. Raises ConfigError for an address that is not read."""
    if SCHEME not in text:
        return Path(os.path.abspath(expanded(text)))
    try:
        return checked_address(text)
    except ValueError as error:
        raise ConfigError(str(error)) from error


@contextmanager
def on_disk(given: Path | str, key: str, suffixes: Collection[str]) -> Iterator[Path]:
    """Yield the path on this machine of what is given. In errors that the body raises, the address replaces it.

    Of a folder at an address, the files with one of the suffixes are brought here; `key` is the place of the setting.
    Raises ConfigError.
    """
    if isinstance(given, Path):
        yield given
        return
    try:
        copy = copied(given, expanded(CACHE), lambda name: kind_of(Path(name)) in suffixes)
    except StorageError as error:
        raise ConfigError(f"{key}: {error}") from error
    try:
        yield copy.path
    except ConfigError as error:
        raise ConfigError(str(error).replace(str(copy.local), copy.remote)) from error
