"""Tables of questions and of passages: their columns, and what every question must have."""

import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from nbrl.infra.paths import opened
from nbrl.infra.storage import sha256
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.reward.rules.code.reference import complaint
from nbrl.tasks.reward.rules.files import reference_of
from nbrl.tasks.reward.rules.rule import CODE, FILES, NO_ANSWERS, QA, readable

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("question", pa.string()),
        ("answers", pa.list_(pa.string())),
        ("ability", pa.string()),
        ("source", pa.string()),
        ("rule", pa.string()),
        ("reference", pa.string()),  # what a rule needs besides the answers, as JSON; empty for most
        ("environment", pa.string()),
        # In the working folder from the beginning: the name there, and the SHA-256 of the content.
        ("files", pa.list_(pa.struct([("name", pa.string()), ("digest", pa.string())]))),
        ("collect", pa.list_(pa.string())),  # names of files of the working folder that are kept for the score
        ("max_steps", pa.int32()),  # and the next: limits of its episodes; null where the agent's hold
        ("deadline_s", pa.float64()),
    ]
)
DEFAULTS: Mapping[str, Any] = {
    "rule": QA,
    "reference": "",
    "environment": "",
    "files": [],
    "collect": [],
    "max_steps": None,
    "deadline_s": None,
}
CORPUS_SCHEMA = pa.schema([("passage", pa.string())])
ID = re.compile(r"[A-Za-z0-9._:-]{1,120}")
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9 _.-]{0,119}")  # of a file in the working folder
ABILITY = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9 _.:-]{0,79}")  # part of a metric's name
MOST_STEPS = 1000
ATTACHED_BYTES = 32 << 20
EXPECTED_BYTES = 1 << 20


GivenFile = Path | tuple[str, bytes]
"""A file of a question: a path, or a name and the content."""


def table_of(rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Return the questions as a table of SCHEMA; what a row does not say is as DEFAULTS says."""
    return pa.Table.from_pylist([{**DEFAULTS, **row} for row in rows], schema=SCHEMA)


def check(questions: pa.Table, where: str) -> None:
    """Raises ConfigError unless ids can name files and are there once, and each question has answers that say something."""
    ids: list[str] = questions["id"].to_pylist()
    if len(set(ids)) < len(ids):
        twice = Counter(ids).most_common(1)[0][0]
        raise ConfigError(f"{where} has the id {twice[:80]!r} more than once; every question needs its own")
    all_ids = set(ids)
    for name in ids:
        before, _, number = name.rpartition(".")
        if number.isdecimal() and before in all_ids:
            raise ConfigError(
                f"{where} has the ids {before!r} and {name!r}, which look like one question in two epochs; rename one"
            )
    for row in questions.select([name for name in SCHEMA.names if name not in ("files", "source", "environment")]).to_pylist():
        if not ID.fullmatch(row["id"]):
            raise ConfigError(f"{where}: id {row['id'][:80]!r} must be up to 120 letters, digits, '.', '_', ':' and '-'")
        if not ABILITY.fullmatch(row["ability"]):
            raise ConfigError(
                f"{where}: ability {row['ability'][:80]!r} must be up to 80 letters, digits, spaces, '_', '.', ':', '-'"
            )
        if not row["question"].strip():
            raise ConfigError(f"{where}: question {row['id']!r} is empty")
        for name in row["collect"]:
            if not NAME.fullmatch(name):
                raise ConfigError(f"{where}: question {row['id']!r} expects the file {name[:80]!r}; take a plain name")
        if row["max_steps"] is not None and not 1 <= row["max_steps"] <= MOST_STEPS:
            raise ConfigError(f"{where}: max_steps of question {row['id']!r} is {row['max_steps']}; take 1 to {MOST_STEPS}")
        if row["deadline_s"] is not None and not 0 < row["deadline_s"] < math.inf:
            raise ConfigError(f"{where}: deadline_s of question {row['id']!r} is {row['deadline_s']}; take seconds above 0")
        if row["rule"] == FILES and not row["collect"]:
            raise ConfigError(f"{where}: question {row['id']!r} expects no file; name some in the column expected")
        if row["rule"] == CODE and (wrong := complaint(row["reference"])):
            raise ConfigError(f"{where}: question {row['id']!r} {wrong}")
        if row["rule"] in NO_ANSWERS:
            continue
        if not row["answers"] or not all(answer and answer.strip() for answer in row["answers"]):
            raise ConfigError(f"{where}: question {row['id']!r} has an empty answer; give it one or leave it out")
        if not any(readable(row["rule"], answer) for answer in row["answers"]):
            raise ConfigError(
                f"{where}: question {row['id']!r} can be answered by no {row['rule']}, for its answer is "
                f"{row['answers'][0][:60]!r}; correct it, or set another rule"
            )


def attach(given: Sequence[GivenFile], where: str, attached: dict[str, Path | bytes]) -> list[dict[str, str]]:
    """Return the files of a question, as SCHEMA has them; add each to `attached` by its digest. Raises ConfigError."""
    digests = {name: sha256(data) for name, data in _read(given, where, ATTACHED_BYTES).items()}
    attached |= {
        digest: each if isinstance(each, Path) else each[1] for digest, each in zip(digests.values(), given, strict=True)
    }
    return [{"name": name, "digest": digest} for name, digest in digests.items()]


def attached_column(where: str, rows: Sequence[Any], folder: Path | None, attached: dict[str, Path | bytes]) -> pa.Array:
    """Return the files of each row: a path or a list of them, within the folder; an empty one is none. Raises ConfigError."""
    return pa.array([attach(_paths(where, row, folder), where, attached) for row in rows], SCHEMA.field("files").type)


def expected_columns(where: str, rows: Sequence[Any], folder: Path | None) -> dict[str, pa.Array]:
    """Return the references and names of the files that each row expects, given as its attached files are. Raises ConfigError."""
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


def _read(given: Sequence[GivenFile], where: str, limit: int) -> dict[str, bytes]:
    """Return the contents of the files by their names."""
    contents: dict[str, bytes] = {}
    for file in given:
        name = file.name if isinstance(file, Path) else file[0]
        if not NAME.fullmatch(name):
            raise ConfigError(f"{where}: a file is named {name[:80]!r}; take letters, digits, spaces, '.', '_' and '-'")
        if name in contents:
            raise ConfigError(f"{where}: a question has two files named {name}; each needs a name of its own")
        contents[name] = _content(file, where, limit) if isinstance(file, Path) else file[1]
        if len(contents[name]) > limit:
            raise ConfigError(f"{where}: the file {name} is larger than {limit >> 20} MiB; make it smaller")
    if sum(map(len, contents.values())) > limit:
        raise ConfigError(f"{where}: the files of a question have more than {limit >> 20} MiB together; make them smaller")
    return contents


def _content(path: Path, where: str, limit: int) -> bytes:
    """Return the first bytes of a file, one more than the limit."""
    try:
        with opened(path) as file:
            return file.read(limit + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{where}: the file {path} cannot be read: {reason}; bring it, or leave it out") from error
