"""Options that several commands share, and the flags that repeat them in a suggested next command."""

from typing import Annotated, Any

import typer

from nbrl.flows.cli import completion
from nbrl.flows.cli.completion import ROOT

HOME = ".nbrl"
Recipe = Annotated[str, typer.Argument(help="a recipe's name, or the path of a YAML file", autocompletion=completion.recipes)]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="override a setting, e.g. update.lr=1e-4", autocompletion=completion.recipe_keys
    ),
]
TakeOver = Annotated[
    bool, typer.Option("--take-over", help="stop another process that trains this run, on any machine, and continue here")
]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust", help="let a run that was begun elsewhere start the programs, and ask the servers, that its settings name"
    ),
]
Restarts = Annotated[
    int | None, typer.Option("--restarts", min=0, help="how often in a row all services are started again after one failed")
]
Home = Annotated[str, typer.Option(help="folder of the local servers' state and logs")]


def with_restarts(overrides: list[str] | None, restarts: int | None) -> list[str]:
    """The overrides of `--set`, and the one that `--restarts` stands for."""
    return [*(overrides or []), *([] if restarts is None else [f"restarts={restarts}"])]


def checked_home(folder: str) -> str:
    from nbrl.tasks.errors import ConfigError

    if not folder.strip():
        raise ConfigError("--home is empty; give a folder, or leave it out")
    return folder


def root_flag(config: Any) -> str:
    """The flag with which `nbrl show` finds this run's storage."""
    return "" if config.storage.root == ROOT else f" --root {config.storage.root}"


def home_flag(config: Any) -> str:
    """The flag with which `nbrl ui` shows this run's pages."""
    return "" if config.home == HOME else f" --home {config.home}"
