"""`nbrl init`: a commented recipe to begin from, with the sample files that it needs."""

import os
import shlex
import sys
import tempfile
from pathlib import Path
from string import Template
from typing import Annotated, Literal, get_args

import typer

from nbrl.flows.cli.guard import on_stop
from nbrl.flows.display.terminal import out

STARTS = Path(__file__).resolve().parents[1] / "starts"  # a recipe for each; samples are in `files`
RECIPE = "my.yaml"
COMMAND = "#   "  # begins a line of a recipe with a command that is next
Start = Literal["questions", "class", "endpoint", "smollm2", "gpu"]


def init(
    start: Annotated[
        Start | None,
        typer.Argument(
            help="questions in a file; a class that asks and scores; a model behind an endpoint, to evaluate it; SmolLM2 on a "
            "machine without a GPU; a GPU",
            show_default="asked for in a terminal",
        ),
    ] = None,
    folder: Annotated[Path, typer.Argument(help="where to write; nothing is overwritten")] = Path("."),
) -> None:
    """Write a commented recipe to begin from, my.yaml, and four to eight sample questions. Prints the next commands."""
    from nbrl.infra.paths import expanded

    on_stop(lambda: "the same command writes what is missing")
    texts = _filled(start or _asked(), expanded(folder))
    _write(expanded(folder), texts)
    for name in texts:
        out.print(f"wrote {folder / name}", markup=False, highlight=False, soft_wrap=True)
    for line in _commands(texts[RECIPE]):
        out.print(f"next  {line}", markup=False, highlight=False, soft_wrap=True)


def _filled(start: str, folder: Path) -> dict[str, str]:
    """Return the files of a start by name: its recipe with the paths of this folder, and the samples that the recipe names."""
    template = Template((STARTS / f"{start}.yaml").read_text(encoding="utf-8"))
    recipe = template.substitute(recipe=shlex.quote(str(folder / RECIPE)), models=shlex.quote(str(folder / "models")))
    samples = {each.name: each.read_text(encoding="utf-8") for each in sorted(STARTS.glob("files/*.*")) if each.name in recipe}
    return {RECIPE: recipe, **samples}


def _commands(recipe: str) -> list[str]:
    return [line.removeprefix(COMMAND) for line in recipe.splitlines() if line.startswith(COMMAND)]


def _asked() -> str:
    """Return the start that the user chooses. Raises ConfigError where there is no terminal to ask at."""
    from nbrl.tasks.errors import ConfigError, did_you_mean

    starts = get_args(Start)
    if not sys.stdin.isatty():
        raise ConfigError(f"no start is named; give one: nbrl init {'|'.join(starts)}")
    for name in starts:
        title = (STARTS / f"{name}.yaml").read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        out.print(f"{name:10} {title}", markup=False, highlight=False, soft_wrap=True)
    while (start := str(typer.prompt("start"))) not in starts:
        out.print(did_you_mean(start, starts), markup=False, highlight=False)
    return start


def _write(folder: Path, texts: dict[str, str]) -> None:
    """Write the files, each whole or not at all. Raises ConfigError if one of them exists with another content."""
    from nbrl.tasks.errors import ConfigError

    try:
        folder.mkdir(parents=True, exist_ok=True)
        missing = [name for name in texts if not os.path.lexists(folder / name)]
        for name, text in texts.items():
            if name not in missing and (folder / name).read_text(encoding="utf-8") != text:
                raise ConfigError(f"{folder / name} exists; name another folder, or move it away: nothing is overwritten")
        with tempfile.TemporaryDirectory(prefix=".nbrl-init-", dir=folder) as beside:
            for name in missing:
                (made := Path(beside) / name).write_text(texts[name], encoding="utf-8")
                os.link(made, folder / name)  # fails where there is something by now
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{folder} cannot be written to: {error}; name another folder") from error
