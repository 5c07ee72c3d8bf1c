"""Completions in the shell. To be quick, each function imports only what it needs and uses no network."""

import os
from pathlib import Path

import typer

from nbrl.tasks.layout import EvaluationLayout, RunLayout

ROOT = ".nbrl/storage"
RECIPES = Path(__file__).resolve().parents[2] / "infra" / "recipes"


def recipes(typed: str) -> list[str]:
    return sorted(path.stem for path in RECIPES.glob("*.yaml") if path.stem.startswith(typed))


def data_sets(typed: str) -> list[str]:
    from nbrl.tasks.environments.datasets.catalogue import CATALOGUE

    return [name for name in CATALOGUE if name.startswith(typed)]


def runs(context: typer.Context, typed: str) -> list[str]:
    """Runs of a local storage root; those of S3 are not listed."""
    return _folders(context, RunLayout("*").identity, typed)


def runs_and_evaluations(context: typer.Context, typed: str) -> list[str]:
    return sorted({*runs(context, typed), *_folders(context, EvaluationLayout("*").data.folder, typed)})


def _folders(context: typer.Context, pattern: str, typed: str) -> list[str]:
    """Names of the folders with a file that matches `pattern`, under the root of the command line so far."""
    overrides = [one.partition("=")[2] for one in context.params.get("set_") or () if one.startswith("storage.root=")]
    root = Path(overrides[-1] if overrides else context.params.get("root") or ROOT)
    return sorted(path.parent.name for path in root.glob(pattern) if path.parent.name.startswith(typed))


def recipe_keys(typed: str) -> list[str]:
    """Keys that `--set` accepts for a recipe."""
    from nbrl.tasks.runs.config import RunConfig  # takes half a second
    from nbrl.tasks.runs.setting_keys import dotted

    return [f"{key}=" for key in dotted(RunConfig) if key.startswith(typed)]


def warmstart_keys(typed: str) -> list[str]:
    from nbrl.tasks.warmstart.settings import WarmstartSettings

    return [f"{key}=" for key in WarmstartSettings.model_fields if key.startswith(typed)]


def prepare_keys(typed: str) -> list[str]:
    """Keys that `--set` accepts for a preparation, without its lists of files."""
    from nbrl.tasks.prepare.settings import PrepareSettings
    from nbrl.tasks.runs.setting_keys import dotted

    keys = [key for key in dotted(PrepareSettings) if not key.startswith(("sources.", "evaluation."))]
    return [f"{key}=" for key in keys if key.startswith(typed)]


def variables(typed: str) -> list[str]:
    return sorted(name for name in os.environ if name.startswith(typed) and "KEY" in name)


def built_in_tools(typed: str) -> list[str]:
    from nbrl.agent.tools.settings import BUILT_IN

    return [name for name in BUILT_IN if name.startswith(typed)]
