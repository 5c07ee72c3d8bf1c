"""Finds modules of a user's own in the folders that were named for them, in this process and in those started from it.

Only these modules: a folder on PYTHONPATH would give every program all its files, before those of the standard library. What is
on PYTHONPATH, or installed, goes first. A process that was started by another one calls `install` before it imports them.
"""

import json
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

VARIABLE = "NBRL_OWN_CODE"  # folders by the first name of a module, in JSON


class OwnCodeFinder(MetaPathFinder):
    """Finds the modules that VARIABLE names, each in its folder."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        folder = _folders().get(name) if path is None else None
        return None if folder is None else PathFinder.find_spec(name, [folder], target)


def look(place: str, folder: Path) -> None:
    """Look for the module of `module:name` in this folder from now on."""
    top = _top(place)
    os.environ[VARIABLE] = json.dumps({**_folders(), top: str(folder)})
    install()


def install() -> None:
    """Let this process find what VARIABLE names."""
    if not any(isinstance(finder, OwnCodeFinder) for finder in sys.meta_path):
        sys.meta_path.append(OwnCodeFinder())


def where_looked(place: str) -> str:
    """Return, for an error, where the module of `module:name` was looked for; empty if it was found."""
    top = _top(place)
    if not top.isidentifier() or find_spec(top) is not None:
        return ""
    folder = _folders().get(top)
    beside = f"beside the recipe, in {folder}, and " if folder else ""
    return f"; {top} was looked for {beside}on PYTHONPATH"


def folder_of(place: str) -> str:
    """Return the folder that was named for the module of `module:name`; empty if none was."""
    return _folders().get(_top(place), "")


def _top(place: str) -> str:
    return place.partition(":")[0].partition(".")[0]


def _folders() -> dict[str, str]:
    return dict(json.loads(os.environ.get(VARIABLE, "{}")))
