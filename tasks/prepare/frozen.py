"""Copies of files of questions that others may be adding to, so that a preparation that is begun again finds the same ones."""

import fcntl
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from nbrl.tasks.prepare.settings import QuestionSource

PATTERN = frozenset("*?[")


def frozen(sources: Iterable[QuestionSource], folder: Path) -> tuple[QuestionSource, ...]:
    """Return the sources that are there, each file copied into `folder` when this is called first, and found there afterwards.

    Files that are empty or not there are left out. Folders, patterns and addresses are used as they are.
    """
    given = tuple(sources)
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="sources-", dir=folder.parent) as scratch:
            copies = Path(scratch, "copies")
            copies.mkdir(0o700)
            for source in given:
                if isinstance(source.path, Path) and source.path.is_file() and source.path.stat().st_size:
                    (copies / source.name).mkdir()
                    with source.path.open("rb") as file, (copies / source.name / source.path.name).open("wb") as copy:
                        fcntl.flock(file, fcntl.LOCK_SH)  # a line is written as a whole
                        shutil.copyfileobj(file, copy)
            copies.rename(folder)
    return tuple(_found(given, folder))


def _found(sources: Iterable[QuestionSource], folder: Path) -> Iterator[QuestionSource]:
    for source in sources:
        if not isinstance(source.path, Path) or source.path.is_dir() or PATTERN & set(source.path.name):
            yield source
        elif (copy := folder / source.name / source.path.name).is_file():
            yield source.model_copy(update={"path": copy})
