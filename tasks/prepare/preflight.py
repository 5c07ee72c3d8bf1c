"""Checks everything that a preparation needs before it begins."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from nbrl.agent.http.client import usable_key
from nbrl.infra.home import HOME, storage_of
from nbrl.infra.paths import expanded
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.prepare.rows import DROPPED
from nbrl.tasks.prepare.settings import PrepareSettings
from nbrl.tasks.prepare.stages import PREPARATION, identity
from nbrl.tasks.prepare.unify import read_evaluation, unify
from nbrl.tasks.reward.rules.rule import CODE, FILES
from nbrl.tasks.runs.recipe_tree import RecipeTree, anchor
from nbrl.tasks.runs.recipes import from_settings
from nbrl.tasks.runs.steps import check_work_folder

PATHS = ("sources.*.path", "evaluation.*.path", "ratings", "difficulty.root")


class Counts(NamedTuple):
    """Rows by source, those of them that can be questions, and questions by evaluation file."""

    rows: dict[str, int]
    usable: dict[str, int]
    evaluation: dict[str, int]


def check(settings: PrepareSettings, folder: Path) -> Counts:
    """Read every file and look at keys, packages and the output folder; nothing is written. Raises ConfigError."""
    if settings.rate is not None:
        try:
            usable_key(settings.rate.key)
        except ValueError as error:
            raise ConfigError(f"rate.key: {error}, or set rate.key to null if the server needs none") from error
    if settings.ratings is not None and settings.ratings.exists() and not settings.ratings.is_dir():
        raise ConfigError(f"ratings names {settings.ratings}, which is a file; name a folder")
    evaluation = {file.name: len(read_evaluation(file)) for file in settings.evaluation}
    table = unify(settings.sources)
    usable = table.filter(pc.is_null(table[DROPPED]))
    if not len(usable):
        raise ConfigError("no row of any source can be a question: each lacks a question or an answer; look at sources.columns")
    if unfit := sorted({FILES, CODE} & set(usable["rule"].to_pylist())):
        raise ConfigError(f"questions of the rule {unfit[0]} have no answers to prepare them by; leave that source out")
    check_work_folder(folder, identity(settings), PREPARATION)
    names = [source.name for source in settings.sources]
    return Counts(_by_source(table, names), _by_source(usable, names), evaluation)


def plan(settings: PrepareSettings, folder: Path, counts: Counts) -> str:
    """Return what the preparation would do, in words."""
    lines = [
        f"source {name}: {rows} rows, of which {counts.usable[name]} have a question and an answer"
        for name, rows in counts.rows.items()
    ]
    lines += [f"evaluation file {name}: {questions} questions" for name, questions in counts.evaluation.items()]
    if not counts.evaluation:
        lines.append("no evaluation files: nothing is decontaminated")
    total = sum(counts.usable.values())
    if settings.rate is not None:
        lines.append(
            f"rate: {settings.rate.name} at {settings.rate.base_url}, at most {total} questions, one request each and up to "
            f"{settings.rate.attempts} where its reply cannot be read"
        )
    if settings.difficulty is not None:
        lines.append(f"difficulty: by the answers of the evaluation {settings.difficulty.evaluation}")
    return "\n".join([*lines, f"output: {folder}"])


def _by_source(table: pa.Table, names: list[str]) -> dict[str, int]:
    sources = table["source"].to_pylist()
    return {name: sources.count(name) for name in names}


def load(recipe: Path, overrides: Iterable[str] = (), home: str = HOME) -> PrepareSettings:
    """Return the settings in a YAML file with `a.b=c` overrides.

    The evaluation of `difficulty` is in the storage of `home` if they name no root.

    Paths in the file are relative to its folder, paths in an override to the current folder. Raises ConfigError naming the file
    or the override, the key and the remedy.
    """
    path = found(str(recipe), Path.cwd())
    values = RecipeTree.read(path, found).settings
    anchor(values, path.parent, PATHS)
    settings = from_settings(PrepareSettings, values, str(path), overrides)
    if settings.difficulty is None or "root" in settings.difficulty.model_fields_set:
        return settings
    return settings.model_copy(update={"difficulty": settings.difficulty.model_copy(update={"root": storage_of(home)})})


def found(recipe: str, folder: Path, example: str = "examples/prepare/recipe.yaml") -> Path:
    path = Path(folder, expanded(recipe)).absolute()
    if not path.is_file():
        raise ConfigError(f"there is no recipe {path}; give the path of a YAML file, see {example}")
    return path
