"""The manifest of a folder: the SHA-256 of every file in it, so that damage is seen before what is damaged is used."""

import hashlib
import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

from nbrl.infra.blobs import flush_folder
from nbrl.infra.errors import DamagedError, MissingError
from nbrl.infra.parse import json_value
from nbrl.infra.paths import NotRegularError, opened

MANIFEST = "manifest.json"
PARALLEL = 8


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file. Raises DamagedError if it is no regular file."""
    try:
        with opened(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except NotRegularError as error:
        raise DamagedError(str(error)) from error


def write_manifest(folder: Path) -> None:
    """Write the manifest of all files in `folder`, and flush everything to disk."""
    digests = digests_of(folder)
    (folder / MANIFEST).write_bytes(manifest_bytes(digests))
    with ThreadPoolExecutor(PARALLEL) as pool:  # disks flush several files in little more time than one
        list(pool.map(_flush, (folder / name for name in (*digests, MANIFEST))))
        list(pool.map(flush_folder, (folder, *(path for path in folder.rglob("*") if path.is_dir()))))


def digests_of(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of all files in a folder, by name, without its manifest."""
    names = _files(folder)
    with ThreadPoolExecutor(PARALLEL) as pool:
        return dict(zip(names, pool.map(lambda name: file_sha256(folder / name), names), strict=True))


def manifest_bytes(digests: Mapping[str, str]) -> bytes:
    return json.dumps(dict(sorted(digests.items())), indent=1).encode()


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_manifest(data: bytes, where: str) -> dict[str, str]:
    """Return the SHA-256 by relative name. Raises DamagedError if the manifest is invalid."""
    try:
        manifest = json_value(data)
    except ValueError as error:
        raise DamagedError(f"{where} is no manifest ({error}); bring the folder back from a copy") from error
    if not isinstance(manifest, dict) or not all(_is_entry(name, digest) for name, digest in manifest.items()):
        raise DamagedError(f"{where} is no manifest; bring the folder back from a copy")
    return manifest


def _is_entry(name: str, digest: object) -> bool:
    """Return whether an entry of a manifest, which may be hostile, names a file below its folder."""
    path = PurePosixPath(name)
    below = bool(path.parts) and not path.is_absolute() and ".." not in path.parts
    return isinstance(digest, str) and below and name == str(path)


def part_digest(manifest: Mapping[str, str], below: str) -> str:
    """Return the SHA-256 over names and digests of a folder's files `below` a part of it, by its manifest: no file is read."""
    part = {name: digest for name, digest in sorted(manifest.items()) if name.startswith(below)}
    return hashlib.sha256(json.dumps(part).encode()).hexdigest()


def check_folder(folder: Path, below: str = "") -> None:
    """Raises DamagedError unless the files of a folder, or those `below` a part of it, are what its manifest says.

    A folder without a manifest is taken as it is, but for links, of which none may lead out of it.
    """
    for each in (folder, *folder.rglob("*")):
        if each.is_symlink():
            raise DamagedError(f"{each} is a link, and none is followed there; put what it names in its place")
    path = folder / MANIFEST
    if not path.is_file():
        return
    manifest = {name: digest for name, digest in read_manifest(path.read_bytes(), str(path)).items() if name.startswith(below)}
    with ThreadPoolExecutor(PARALLEL) as pool:
        for name, digest in zip(manifest, pool.map(lambda name: _digest_of(folder / name), manifest), strict=True):
            if digest != manifest[name]:
                state = "is damaged" if digest else "is gone"
                raise DamagedError(f"{folder / name} {state}: it is not what was written there; bring {folder} back from a copy")


def check_whole(folder: Path) -> None:
    """Check as `check_folder` does a folder that was written with a manifest. Raises MissingError if either is gone."""
    if not (folder / MANIFEST).is_file():
        raise MissingError(f"{folder} has lost its {MANIFEST}" if folder.is_dir() else f"{folder} is gone")
    check_folder(folder)


def _digest_of(path: Path) -> str:
    """Return the SHA-256 of a file; empty where there is none."""
    try:
        return file_sha256(path)
    except FileNotFoundError:
        return ""


def _files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)
