"""Fetches a split of a published data set, from the hub or from a file of its schema, and makes questions and passages of it."""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from nbrl.infra.arrow_files import UnfitTableError, read_parquet
from nbrl.tasks.environments.datasets.catalogue import CATALOGUE
from nbrl.tasks.environments.datasets.published import Published, PublishedQuestion, Row
from nbrl.tasks.environments.questions import CORPUS_SCHEMA, ID, check, table_of
from nbrl.tasks.environments.tables import read_rows
from nbrl.tasks.errors import ConfigError, did_you_mean

CONVERTED = "refs/convert/parquet"  # where the hub keeps every data set as Parquet, by configuration and split


class Fetched(NamedTuple):
    """Questions with the columns of SCHEMA, passages without doubles, and how many rows have no answer to compare."""

    questions: pa.Table
    passages: pa.Table
    left_out: int


def published(name: str) -> Published:
    """Return a data set by its name. Raises ConfigError."""
    if name not in CATALOGUE:
        raise ConfigError(f"there is no data set {name!r}; {did_you_mean(name, CATALOGUE)}")
    return CATALOGUE[name]


def from_hub(name: str, split: str) -> Iterator[Row]:
    """Yield the split's rows as the hub has them. Raises ConfigError if it cannot be reached or has no such split."""
    data = published(name)
    if split not in data.splits:
        raise ConfigError(f"the data set {name} has no split {split!r} with answers; it has {', '.join(data.splits)}")
    for path in _downloaded(data.repository, data.configuration, split):
        yield from _read(path).to_pylist()


def hub_table(repository: str, configuration: str, split: str, limit: int | None) -> pa.Table:
    """Return the first `limit` rows of a split of any data set, with its own columns. Raises ConfigError if it cannot be had."""
    table = pa.concat_tables([_read(path) for path in _downloaded(repository, configuration, split)])
    return table.slice(0, limit)


def _read(path: str) -> pa.Table:
    try:
        return read_parquet(Path(path))
    except (pa.ArrowException, UnfitTableError) as error:
        raise ConfigError(f"the file {path} of the hub cannot be read: {error}") from error


def _downloaded(repository: str, configuration: str, split: str) -> list[str]:
    """Return local copies of the Parquet files of a split. Raises ConfigError."""
    from huggingface_hub import HfApi, hf_hub_download

    try:
        files = HfApi().list_repo_files(repository, repo_type="dataset", revision=CONVERTED)
        parts = [
            each
            for each in sorted(files)
            if re.match(rf"{re.escape(configuration)}/(partial-)?{re.escape(split)}/.*\.parquet", each)
        ]
        paths = [hf_hub_download(repository, part, repo_type="dataset", revision=CONVERTED) for part in parts]
    except Exception as error:  # of whatever library the hub's client speaks through
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(
            f"the hub does not give {repository}: {reason}; bring its {split} split as a file: `nbrl data fetch --file`"
        ) from error
    if not paths:
        raise ConfigError(f"the hub has no Parquet files of {repository}, {configuration}, {split}; name another split")
    return paths


def from_file(path: Path) -> Iterator[Row]:
    """Yield the rows of a file that has the data set's own columns. Raises ConfigError."""
    yield from read_rows(path)


def convert(name: str, split: str, source: Iterable[Row], limit: int | None = None) -> Fetched:
    """Return questions and passages of the first `limit` rows that have an answer. Raises ConfigError for another schema."""
    data = published(name)
    rows: list[dict[str, object]] = []
    passages: dict[str, None] = {}
    left_out = 0
    for row in source:
        if len(rows) == limit:
            break
        try:
            question = _checked(data.ask(row))
            found = data.passages(row) if question else []
        except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
            raise ConfigError(
                f"row {len(rows) + left_out} of {name} is not of its schema ({type(error).__name__}: {error}); its columns are "
                f"{', '.join(row)}"
            ) from error
        if question is None or not (question.reference or any(answer.strip() for answer in question.answers)):
            left_out += 1
            continue
        rows.append(_row(name, split, data, question, len(rows)))
        passages |= dict.fromkeys(found)
    if not rows:
        raise ConfigError(f"no row of {name} has an answer that could be compared ({left_out} were read)")
    questions = table_of(rows)
    check(questions, f"the data set {name}")
    return Fetched(questions, pa.table({"passage": list(passages)}, schema=CORPUS_SCHEMA), left_out)


def _checked(asked: PublishedQuestion | None) -> PublishedQuestion | None:
    """Return the question with its answers as text. Raises TypeError or ValueError for what is none."""
    if asked is None:
        return None
    answers = [str(each) if isinstance(each, int | float) else each for each in asked.answers]
    for each in (asked.id, asked.question, asked.ability, *answers):
        if not isinstance(each, str):
            raise TypeError(f"{each!r} is no text")
        each.encode()
    return asked._replace(answers=answers)


def _row(name: str, split: str, data: Published, asked: PublishedQuestion, number: int) -> dict[str, object]:
    own = asked.id if ID.fullmatch(asked.id) else f"{name}-{split}-{number:06d}"
    question, answers = asked.question.strip(), [answer for answer in asked.answers if answer.strip()]
    return {
        "id": own,
        "question": question,
        "answers": answers,
        "ability": asked.ability,
        "source": f"{data.repository} {split}",
        "rule": data.rule,
        "reference": asked.reference,
    }
