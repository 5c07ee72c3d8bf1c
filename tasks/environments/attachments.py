"""Files that questions come with, and files that the agent has to make: read beside the file of questions that names them."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from nbrl.infra.paths import opened
from nbrl.infra.storage import sha256
from nbrl.tasks.environments.questions import NAME, SCHEMA
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.reward.rules.files import reference_of

ATTACHED_BYTES = 32 << 20
EXPECTED_BYTES = 1 << 20


def attach(paths: Sequence[Path], where: str, attached: dict[str, Path]) -> list[dict[str, str]]:
    """The files of a question, as SCHEMA has them; their paths are added to `attached` by their digest. Raises ConfigError."""
    digests = {name: sha256(data) for name, data in _read(paths, where, ATTACHED_BYTES).items()}
    attached |= dict(zip(digests.values(), paths, strict=True))
    return [{"name": name, "digest": digest} for name, digest in digests.items()]


def attached_column(where: str, rows: Sequence[Any], folder: Path | None, attached: dict[str, Path]) -> pa.Array:
    """The files of each row: a path or a list of them, within the folder; an empty one is none. Raises ConfigError."""
    return pa.array([attach(_paths(where, row, folder), where, attached) for row in rows], SCHEMA.field("files").type)


def expected_columns(where: str, rows: Sequence[Any], folder: Path | None) -> dict[str, pa.Array]:
    """The references and names of the files that each row expects, given as its attached files are. Raises ConfigError."""
    expected = [_read(_paths(where, row, folder), where, EXPECTED_BYTES) for row in rows]
    references = [reference_of(files) if files else "" for files in expected]
    names = [list(files) for files in expected]
    return {"reference": pa.array(references, pa.string()), "collect": pa.array(names, pa.list_(pa.string()))}


def _paths(where: str, row: Any, folder: Path | None) -> list[Path]:
    names = [row] if isinstance(row, str) else row or []
    if not isinstance(names, list) or not all(isinstance(name, str) and name.isprintable() for name in names):
        raise ConfigError(f"{where} names files by {str(row)[:60]!r}; give a path, or a list of paths")
    names = [name for name in names if name]
    if folder is None and names:
        raise ConfigError(f"{where} names the file {names[0]!r}; fetch the data set into a folder, with its files beside it")
    for name in names:
        if folder is not None and not Path(os.path.realpath(folder / name)).is_relative_to(os.path.realpath(folder)):
            raise ConfigError(f"{where} names the file {name!r}, which is not in its folder {folder}; bring it there")
    return [Path(folder or "", name) for name in names]


def _read(paths: Sequence[Path], where: str, limit: int) -> dict[str, bytes]:
    """The contents of the files by their names."""
    found: dict[str, bytes] = {}
    for path in paths:
        if not NAME.fullmatch(path.name):
            raise ConfigError(f"{where}: a file is named {path.name[:80]!r}; take letters, digits, spaces, '.', '_' and '-'")
        if path.name in found:
            raise ConfigError(f"{where}: a question has two files named {path.name}; each needs a name of its own")
        try:
            with opened(path) as file:
                found[path.name] = file.read(limit + 1)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise ConfigError(f"{where}: the file {path} cannot be read: {reason}; bring it, or leave it out") from error
        if len(found[path.name]) > limit:
            raise ConfigError(f"{where}: the file {path} is larger than {limit >> 20} MiB; make it smaller")
    if sum(map(len, found.values())) > limit:
        raise ConfigError(f"{where}: the files of a question have more than {limit >> 20} MiB together; make them smaller")
    return found
