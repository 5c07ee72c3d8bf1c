"""Completions in the shell, of recipes, runs and keys. To be quick, each function imports what it needs and uses no network.

The shell puts completions on the line as they are: of texts from a storage only words are offered that mean nothing to a shell.
"""

from pathlib import Path
from typing import Any

import typer

from nbrl.infra.home import HOME, storage_of
from nbrl.tasks.layout.runs import NAME, EvaluationLayout, RunLayout

RECIPES = Path(__file__).resolve().parents[2] / "infra" / "recipes"


def recipes(typed: str) -> list[str]:
    return _recipes(RECIPES, typed)


def warmstarts(typed: str) -> list[str]:
    return _recipes(RECIPES / "warmstart", typed)


def _recipes(folder: Path, typed: str) -> list[str]:
    return sorted(path.stem for path in folder.glob("*.yaml") if path.stem.startswith(typed))


def runs(context: typer.Context, typed: str) -> list[str]:
    """Return runs of a local storage root; those of S3 are not listed."""
    return _folders(context, RunLayout("*").identity, typed)


def runs_and_evaluations(context: typer.Context, typed: str) -> list[str]:
    return sorted({*runs(context, typed), *_folders(context, EvaluationLayout("*").data.folder, typed)})


def _folders(context: typer.Context, pattern: str, typed: str) -> list[str]:
    """Return names of the folders with a file that matches `pattern`, under the root of the command line so far."""
    given = dict(one.partition("=")[::2] for one in context.params.get("set_") or ())
    home = context.params.get("home") or given.get("home") or HOME
    root = Path(given.get("storage.root") or context.params.get("root") or storage_of(home))
    names = {path.parent.name for path in root.glob(pattern)}
    return sorted(name for name in names if NAME.fullmatch(name) and name.startswith(typed))


def recipe_keys(typed: str) -> list[str]:
    """Return keys that `--set` accepts for a recipe."""
    from nbrl.tasks.runs.config import RunConfig  # takes half a second

    return _keys(RunConfig, typed)


def warmstart_keys(typed: str) -> list[str]:
    from nbrl.tasks.warmstart.settings import WarmstartSettings

    return _keys(WarmstartSettings, typed, ("phases.",))


def prepare_keys(typed: str) -> list[str]:
    """Return keys that `--set` accepts for a preparation, without its lists of files."""
    from nbrl.tasks.prepare.settings import PrepareSettings

    return _keys(PrepareSettings, typed, ("sources.", "evaluation."))


def _keys(settings: Any, typed: str, lists: tuple[str, ...] = ()) -> list[str]:
    from nbrl.tasks.runs.decisive import dotted

    return [f"{key}=" for key in dotted(settings) if key.startswith(typed) and not key.startswith(lists)]
