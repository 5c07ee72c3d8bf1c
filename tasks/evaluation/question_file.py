"""A file of questions in place of a recipe: the settings that it means, and the columns that a command line names."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nbrl.infra.manifest import file_sha256
from nbrl.infra.paths import expanded
from nbrl.infra.storage import sha256
from nbrl.tasks.environments.addresses import SCHEME, meant, on_disk
from nbrl.tasks.environments.csv_table import kind_of
from nbrl.tasks.environments.tables import SUFFIXES, files_of
from nbrl.tasks.errors import ConfigError, did_you_mean
from nbrl.tasks.reward.rules.rule import RULES
from nbrl.tasks.runs.recipes import names

NAME = "questions"  # of the environment
# What a model behind a server has no use for, so that a recipe may leave it out.
NOT_TRAINED: Mapping[str, Any] = {"iterations": 0, "policy": {"path": "."}}
PATTERN = "*?["
LONGEST = 40  # characters of a file's name in that of an evaluation
_COLUMNS = re.compile(rf"environments\.{NAME}\.columns\.(\w+)")


def is_question_file(given: str) -> bool:
    """Return whether what is given in place of a recipe names questions: a file, a folder of files, a pattern, or an address."""
    if not given or given in names():
        return False
    path = expanded(given)
    return SCHEME in given or kind_of(path) in SUFFIXES or path.is_dir()


def settings_of(file: str, columns: Mapping[str, str], rule: str) -> dict[str, Any]:
    """Return the settings of an evaluation on the questions of a file. Raises ConfigError if it is not there."""
    path = meant(file)
    if isinstance(path, Path) and not path.exists() and not any(sign in file for sign in PATTERN):
        raise ConfigError(f"there is no file of questions {path}; correct the path")
    if rule and rule not in RULES:
        raise ConfigError(f"--rule {rule!r} is no rule that compares answers; {did_you_mean(rule, RULES)}")
    environment = {"kind": "files", "held_out": str(path), "columns": dict(columns)} | ({"rule": rule} if rule else {})
    plain = re.sub(r"[^A-Za-z0-9]+", "-", Path(path).name.partition(".")[0])[:LONGEST].strip("-")
    return {"name": plain or NAME, "environments": {NAME: environment}}


def columns_in(text: str) -> dict[str, str]:
    """Return the columns that `OURS=YOURS,…` names. Raises ConfigError if it is not written so."""
    pairs = [part.partition("=") for part in text.split(",")]
    if wrong := next(("".join(pair) for pair in pairs if not (pair[0].strip() and pair[2].strip())), None):
        raise ConfigError(f"--columns {wrong!r} must look like question=THEIRS,answers=THEIRS, with the names of your columns")
    return {ours.strip(): theirs.strip() for ours, _, theirs in pairs}


@contextmanager
def options_in_errors() -> Iterator[None]:
    """Raise errors about the settings of a file of questions in the words of the command line."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(_COLUMNS.sub(r"--columns \1=…", str(error))) from error


def content_of(file: str) -> str:
    """Return a digest of what the files hold: of other questions the evaluation is another one. Raises ConfigError."""
    with on_disk(meant(file), "the command", SUFFIXES) as path:
        return sha256("".join(map(file_sha256, files_of(path, "the command"))).encode())
