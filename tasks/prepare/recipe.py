"""Reads the recipe of a preparation."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from nbrl.infra.paths import expanded
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.prepare.settings import PrepareSettings
from nbrl.tasks.runs.recipe_tree import RecipeTree
from nbrl.tasks.runs.recipes import from_settings


def load(recipe: Path, overrides: Iterable[str] = ()) -> PrepareSettings:
    """The settings in a YAML file with `a.b=c` overrides.

    Paths in the file are relative to its folder, paths in an override to the current folder. Raises ConfigError naming the file
    or the override, the key and the remedy.
    """
    path = _found(str(recipe), Path.cwd())
    values = RecipeTree.read(path, _found).settings
    _anchor(values, path.parent)
    return from_settings(PrepareSettings, values, str(path), overrides)


def _found(recipe: str, folder: Path) -> Path:
    path = Path(folder, expanded(recipe)).absolute()
    if not path.is_file():
        raise ConfigError(f"there is no recipe {path}; give the path of a YAML file, see examples/prepare/recipe.yaml")
    return path


def _anchor(values: dict[str, Any], folder: Path) -> None:
    """Make the paths absolute: they are meant from `folder`."""
    lists = [each for each in (values.get("sources"), values.get("evaluation")) if isinstance(each, list)]
    for item in [values, *(item for each in lists for item in each if isinstance(item, dict))]:
        key = "replies" if item is values else "path"
        if isinstance(item.get(key), str) and item[key]:
            item[key] = str(Path(folder, expanded(item[key])).absolute())
