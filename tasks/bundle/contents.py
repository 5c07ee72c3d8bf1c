"""What a published run consists of: a list of its files with their digests, and one root over all of them.

The root is that of a Merkle tree as in RFC 6962, section 2.1, whose leaves are the files in the order of their paths. Who has
the root can check one file by the list alone, or all of them.
"""

import hashlib
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from nbrl.infra.closed import ClosedModel
from nbrl.infra.errors import DamagedError
from nbrl.infra.parse import json_value
from nbrl.tasks.errors import ConfigError, fault_in_words

CONTENTS, SIGNATURE = "bundle.json", "bundle.json.sig"
STORAGE, WEIGHTS, CARD = "storage", "weights", "README.md"  # the run as on a storage, the newest weights, and the model card
CURVE, LOCKS = "learning-curve.png", "locks"
LOCK_FILES = {name: f"{LOCKS}/{name.replace('/', '-')}" for name in ("uv.lock", "infra/engine/environment/uv.lock")}
Parts = Literal["weights", "adapters", "none"]  # of the newest weights: the whole model, what LoRA trained, or nothing
LARGEST_LIST = 64 << 20  # bytes of the list itself
MOST_FILES, LONGEST_PATH, DEEPEST = 1_000_000, 400, 16
PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@=+-]{0,199}")  # of a part of a path
VERSION = r"^[A-Za-z0-9][A-Za-z0-9._+!-]{0,199}$"
TEXTS = (".json", ".md")
BLOCK, GIGABYTE = 1 << 20, 1_000_000_000


class ListedFile(ClosedModel):
    """The size in bytes and the SHA-256 of a file."""

    size: int = Field(ge=0, le=1 << 50)
    sha256: str = Field(pattern="^[0-9a-f]{64}$")


class FileList(ClosedModel):
    """The list of a published run: `files` by path below the folder, without the list and its signature.

    `version` and `commit` are those of nbrl that trained and published it, `packages` the versions of what computed.
    """

    format: int = Field(1, ge=1, le=1)
    run: str = Field(pattern=VERSION)
    version: str = Field(pattern=VERSION)
    commit: str = Field(pattern="^[0-9a-f]{0,64}(-dirty)?$")
    packages: dict[Annotated[str, Field(pattern=VERSION)], Annotated[str, Field(pattern=VERSION)]]
    updates: int = Field(ge=0, le=1 << 40)
    files: dict[str, ListedFile] = Field(max_length=MOST_FILES)
    root: str = Field(pattern="^[0-9a-f]{64}$")

    @property
    def size(self) -> int:
        """Return the bytes of all files together."""
        return sum(each.size for each in self.files.values())


def merkle_root(leaves: Sequence[bytes]) -> bytes:
    """Return the root over leaves (RFC 6962, 2.1); of none it is the SHA-256 of nothing."""
    if not leaves:
        return hashlib.sha256().digest()
    if len(leaves) == 1:
        return hashlib.sha256(b"\0" + leaves[0]).digest()
    left = 1 << (len(leaves) - 1).bit_length() - 1  # the largest power of two below their number
    return hashlib.sha256(b"\1" + merkle_root(leaves[:left]) + merkle_root(leaves[left:])).digest()


def root_of(files: Mapping[str, ListedFile]) -> str:
    """Return the root over files, whose leaves are `path NUL size NUL digest`."""
    leaves = [f"{path}\0{each.size}\0{each.sha256}".encode() for path, each in sorted(files.items())]
    return merkle_root(leaves).hex()


def listed(path: Path) -> ListedFile:
    """Return size and digest of a file."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            digest.update(block)
            size += len(block)
    return ListedFile(size=size, sha256=digest.hexdigest())


def parsed(text: bytes, where: str) -> FileList:
    """Return a list that may be hostile. Raises DamagedError unless its root is that of its files, whose paths are plain."""
    if len(text) > LARGEST_LIST:
        raise DamagedError(f"{where} has more than {LARGEST_LIST >> 20} MB, and is no list of a published run")
    try:
        contents = FileList.model_validate(json_value(text.decode(), unique=True))
    except (ValidationError, ValueError, RecursionError) as error:
        what = fault_in_words(error) if isinstance(error, ValidationError) else "it is no JSON, or has a key twice"
        raise DamagedError(f"{where} is no list of a published run: {' '.join(what.split())[:300]}") from error
    for path in contents.files:
        parts = path.split("/")
        if len(path) > LONGEST_PATH or len(parts) > DEEPEST or not all(map(PLAIN.fullmatch, parts)):
            raise DamagedError(f"{where} names {path[:80]!r}, which is no plain path below its folder")
        above = {"/".join(parts[:number]) for number in range(1, len(parts))}
        if path in (CONTENTS, SIGNATURE) or not above.isdisjoint(contents.files):
            raise DamagedError(f"{where} names {path[:80]!r}, which cannot be beside the others")
    if root_of(contents.files) != contents.root:
        raise DamagedError(f"{where} names a root that is not that of its files: it was changed")
    return contents


def read_contents(folder: Path) -> FileList:
    """Return the list in a folder. Raises ConfigError where there is none, DamagedError as `parsed`."""
    path = folder / CONTENTS
    if path.is_symlink() or not path.is_file():
        raise ConfigError(f"{folder} holds no published run: it has no {CONTENTS}")
    with path.open("rb") as file:
        return parsed(file.read(LARGEST_LIST + 1), str(path))


def check_size(where: str, contents: FileList, most_gb: float) -> None:
    """Raises ConfigError where the listed files have more gigabytes together, DamagedError where a text has more than one can."""
    if contents.size > most_gb * GIGABYTE:
        shown = f"{contents.size / GIGABYTE:.1f}"
        raise ConfigError(f"{where} has {shown} GB, and --most-gb allows {most_gb:g}; raise it if you want so many")
    for path, each in contents.files.items():  # which are read whole
        if path.endswith(TEXTS) and each.size > LARGEST_LIST:
            raise DamagedError(f"{path} of {where} has more than {LARGEST_LIST >> 20} MB, and is no text of a published run")


def check_files(folder: Path, contents: FileList) -> None:
    """Raises DamagedError unless the folder holds the listed files with their bytes, and nothing else: no link, no other kind."""
    found = dict(_walk(folder))
    wanted = contents.files.keys() | {CONTENTS}
    if lost := sorted(wanted - found.keys()):
        raise DamagedError(f"{folder} lacks {lost[0]}{_more(lost)}, which its list names")
    if unknown := sorted(found.keys() - wanted - {SIGNATURE}):
        raise DamagedError(f"{folder} holds {unknown[0][:80]!r}{_more(unknown)}, which its list does not name")
    for path, each in sorted(contents.files.items()):
        if found[path] != each.size or listed(folder / path) != each:
            raise DamagedError(f"{path} in {folder} is not the file that was published: its digest is another")


def _walk(folder: Path) -> Iterator[tuple[str, int]]:
    """Yield the files of a folder, by path, with their sizes. Raises DamagedError for anything but plain files and folders."""
    left = [folder]
    while left:
        for entry in os.scandir(left.pop()):
            path = PurePosixPath(Path(entry.path).relative_to(folder).as_posix())
            mode = entry.stat(follow_symlinks=False).st_mode
            if stat.S_ISREG(mode):
                yield str(path), entry.stat(follow_symlinks=False).st_size
            elif not stat.S_ISDIR(mode):
                raise DamagedError(f"{str(path)[:80]!r} in {folder} is a link or no file; a published run has neither")
            elif len(path.parts) >= DEEPEST:
                raise DamagedError(f"{str(path)[:80]!r} in {folder} lies deeper than any file of a published run")
            else:
                left.append(Path(entry.path))


def _more(paths: Sequence[str]) -> str:
    return f" and {len(paths) - 1} more" if len(paths) > 1 else ""
