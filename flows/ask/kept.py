"""Questions of one's own use, kept to learn from: only where `--keep` says so, and with what is right."""

import fcntl
import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from nbrl.infra.errors import StorageError
from nbrl.tasks.errors import ConfigError

ID_DIGITS = 16


def check_keep(path: Path | None, right: Sequence[str], others: bool) -> None:
    """Raises ConfigError unless the options say what is kept where: `others` says that there are files beside the question."""
    if path is None:
        if right:
            raise ConfigError("--right is for --keep, which keeps the question with it; name a file by --keep")
        return
    if not [answer for answer in right if answer.strip()]:
        raise ConfigError("--keep keeps a question with what is right, so that it can be learned from; add --right ANSWER")
    if others:
        raise ConfigError("--keep keeps a question alone, and this one has files beside it; leave one of both out")
    check_file(path)


def check_file(path: Path) -> None:
    """Raises ConfigError unless questions can be kept in this file."""
    if path.suffix != ".jsonl":
        raise ConfigError(f"--keep writes JSON lines; name a file that ends in .jsonl, not {path.name!r}")
    if path.is_symlink() or (path.exists() and not path.is_file()) or not path.absolute().parent.is_dir():
        raise ConfigError(f"--keep {path} is no file that can be written; name one in a folder that is there")


def keep_question(path: Path, question: str, right: Sequence[str]) -> None:
    """Add a question with its right answers to a file of JSON lines. Raises StorageError."""
    name = hashlib.sha256(question.encode()).hexdigest()[:ID_DIGITS]
    row = {"id": name, "question": question, "answers": [answer for answer in right if answer.strip()]}
    line = f"{json.dumps(row)}\n".encode()
    try:
        with path.open("a+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)  # of another server or agent
            size = file.seek(0, os.SEEK_END)
            if size:
                file.seek(size - 1)
                line = line if file.read(1) == b"\n" else b"\n" + line
            try:
                while line:
                    line = line[file.write(line) :]
            except OSError:
                file.truncate(size)  # no part of a line stays
                raise
    except OSError as error:
        raise StorageError(f"--keep {path} cannot be written: {error.strerror}") from error
