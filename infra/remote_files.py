"""Files at an address, `s3://bucket/…` or `hf://datasets/owner/name/…`, as a copy on the disk of this machine.

A copy is named by a digest of names, sizes and versions as the store lists them, so that a changed object makes another copy. It
appears whole, by a rename. Names in a store may be hostile: of each only what follows its folder is used, if a file can have it.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from nbrl.infra.errors import StorageError, shortened
from nbrl.infra.paths import NAME_BYTES, scratch
from nbrl.infra.s3_blobs import s3_files, s3_objects

SIGNS = "*?["  # of a pattern
MOST_LISTED = 10_000  # objects of a folder: ten pages of a listing
MOST_BYTES = 64 << 30  # of all files together: they are read into memory, which more would not fit into
PACKAGES = {"s3": ("s3fs", "nbrl[train]"), "hf": ("huggingface_hub", "huggingface_hub")}
CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, of an account that may read it",
    "hf": "set HF_TOKEN to a token that may read it, or log in by `hf auth login`",
}
NETWORK = {
    "s3": "look at the network, AWS_ENDPOINT_URL and AWS_REGION",
    "hf": "look at the network, HF_ENDPOINT and HF_HUB_OFFLINE",
}


class RemoteFile(NamedTuple):
    """A file of a folder in a store. Its version changes with its content."""

    name: str
    size: int
    version: str


class RemoteCopy(NamedTuple):
    """The folder `remote` of a store as the folder `local`, and the path in it that means what the address does."""

    remote: str
    local: Path
    path: Path


def copied(address: str, cache: Path, is_data: Callable[[str], bool]) -> RemoteCopy:
    """Return a copy below `cache` of what an address means: a file, a folder's files that are data, or those of a pattern.

    Raises StorageError, in one sentence.
    """
    scheme, _, path = address.rstrip("/").partition("://")
    with _in_words(address, scheme):
        files = _connected(scheme)
        folder, name, found = _found(files, scheme, path, is_data)
        if not found:
            reason = (
                "matches no object" if name else f"has no files of the formats that are read, as {address}/*.parquet would name"
            )
            raise StorageError(f"{address} {reason}; correct it")
        if (size := sum(each.size for each in found)) > MOST_BYTES:
            raise StorageError(
                f"{address} has {size >> 30} GB, and up to {MOST_BYTES >> 30} are read; name a part of it by a pattern"
            )
        identity = hashlib.sha256(json.dumps([scheme, folder, found]).encode()).hexdigest()[:32]
        local = cache / identity / folder.rpartition("/")[2]
        there = local.exists()
        if not _whole(local, found):
            if there:  # and not whole: it is damaged
                shutil.rmtree(local.parent)
            cache.mkdir(mode=0o700, parents=True, exist_ok=True)
            with scratch(cache / "partial", identity) as made:
                _fetch(files, folder, found, made)
                files.invalidate_cache()
                if _found(files, scheme, path, is_data) != (folder, name, found) or not _whole(made, found):
                    raise StorageError(f"{address} was changed while it was fetched; use the same command again")
                local.parent.mkdir(exist_ok=True)
                with suppress(FileExistsError):  # another process was faster, with the same files
                    _renamed(made, local)
    return RemoteCopy(f"{scheme}://{folder}", local, local / name)


def _connected(scheme: str) -> Any:
    """Return the fsspec file system of a store."""
    package, installed = PACKAGES[scheme]
    if find_spec(package) is None:
        raise StorageError(f"{scheme}:// needs the package {package}: pip install '{installed}'")
    if scheme == "s3":
        return s3_files()
    import huggingface_hub

    return huggingface_hub.HfFileSystem(skip_instance_cache=True)


def _found(files: Any, scheme: str, path: str, is_data: Callable[[str], bool]) -> tuple[str, str, list[RemoteFile]]:
    """Return a folder, the name or pattern in it that is meant, empty for all of it, and the files, sorted."""
    folder, _, name = path.rpartition("/")
    if any(sign in name for sign in SIGNS):
        return folder, name, _in_folder(files, scheme, folder, lambda each: fnmatchcase(each, name))
    described = files.info(path)
    if described["type"] == "file":
        return folder, name, [_checked(RemoteFile(name, described["size"], _version(described)))]
    return path, "", _in_folder(files, scheme, path, is_data)


def _in_folder(files: Any, scheme: str, folder: str, is_meant: Callable[[str], bool]) -> list[RemoteFile]:
    """Return the files of a folder that are meant and not hidden."""
    found = [*islice(_listed(files, scheme, folder), MOST_LISTED + 1)]
    if len(found) > MOST_LISTED:
        raise StorageError(
            f"{scheme}://{folder} holds more than {MOST_LISTED} objects; put those to read into a folder of their own"
        )
    names = [each for each in found if each.name and "/" not in each.name and not each.name.startswith(".")]
    return sorted(_checked(each) for each in names if is_meant(each.name))


def _listed(files: Any, scheme: str, folder: str) -> Iterator[RemoteFile]:
    """Yield what is in a folder and no folder itself."""
    if scheme == "s3":
        bucket, _, key = folder.partition("/")
        prefix = f"{key}/" if key else ""
        for each in s3_objects(files, bucket, Prefix=prefix, Delimiter="/"):
            yield RemoteFile(each["Key"].removeprefix(prefix), each["Size"], _version(each))
    else:
        for each in files.ls(folder, detail=True):
            if each["type"] == "file":
                yield RemoteFile(each["name"].rpartition("/")[2], each["size"], _version(each))


def _version(described: dict[str, Any]) -> str:
    """Return the store's own name of the content, or its time where there is none, as some S3 servers have it."""
    return str(described.get("ETag") or described.get("blob_id") or described.get("LastModified"))


def _checked(file: RemoteFile) -> RemoteFile:
    """Return the file. Raises StorageError where its name can be that of no file of ours."""
    if file.name in ("", ".", "..") or "/" in file.name or not file.name.isprintable() or len(file.name.encode()) > NAME_BYTES:
        raise StorageError(f"there is an object named {file.name[:80]!r}, which can be the name of no file here; rename it")
    return file


def _fetch(files: Any, folder: str, found: list[RemoteFile], target: Path) -> None:
    for each in found:
        files.get_file(f"{folder}/{each.name}", str(target / each.name))


def _whole(folder: Path, found: list[RemoteFile]) -> bool:
    """Return whether the files are there in their sizes."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return all((folder / each.name).stat().st_size == each.size for each in found)
    return False


def _renamed(made: Path, local: Path) -> None:
    """Give a folder its name. Raises FileExistsError where one has it."""
    try:
        made.rename(local)
    except OSError as error:
        if local.exists():
            raise FileExistsError(str(local)) from error
        raise


@contextmanager
def _in_words(address: str, scheme: str) -> Iterator[None]:
    """Raise what libraries raise as StorageError."""
    try:
        yield
    except StorageError:
        raise
    except FileNotFoundError as error:
        private = f", or is private; correct it, or {CREDENTIALS[scheme]}" if scheme == "hf" else "; correct it"
        raise StorageError(f"{address} does not exist{private}") from error
    except PermissionError as error:
        raise StorageError(f"{address} may not be read ({shortened(error)}); {CREDENTIALS[scheme]}") from error
    except Exception as error:  # of whatever library speaks with the store
        unknown = "Credentials" in type(error).__name__ or getattr(getattr(error, "response", None), "status_code", 0) in (
            401,
            403,
        )
        remedy = (CREDENTIALS if unknown else NETWORK)[scheme]
        raise StorageError(f"{address} cannot be fetched ({shortened(error) or type(error).__name__}); {remedy}") from error
