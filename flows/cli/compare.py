"""`nbrl compare`."""

import json
from pathlib import Path
from typing import Annotated

import typer

from nbrl.flows.cli import completion
from nbrl.flows.cli.guard import on_stop
from nbrl.flows.cli.stored import Home, Root, read_alone
from nbrl.flows.display.terminal import out


def compare(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN[@N]|EVALUATION…",
            help="two or more: a run, the evaluation of a run after N updates, or the name of an evaluation",
            autocompletion=completion.runs_and_evaluations,
        ),
    ],
    home: Home = None,
    root: Root = None,
    all_: Annotated[bool, typer.Option("--all", help="show also settings that differ and decide no result")] = False,
    picture: Annotated[
        Path | None,
        typer.Option(metavar="FILE.png", help="draw all curves and their sigmoids into this file", show_default=False),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the comparison as JSON")] = False,
) -> None:
    """Compare runs and evaluations: scores with intervals, the difference on common questions, settings, cost and ceilings.

    The first is what the others are compared with.
    """
    from nbrl.flows.display.comparison import render
    from nbrl.flows.display.saved import put, writable
    from nbrl.tasks.comparison import compare as logic
    from nbrl.tasks.comparison.page import page
    from nbrl.tasks.errors import ConfigError
    from nbrl.tasks.runs.kept import fitting

    on_stop(lambda: "nothing was written")
    if picture is not None and picture.suffix.lower() != ".png":
        raise ConfigError(f"--picture writes a PNG; name a file that ends in .png, not {picture.name!r}")
    target = writable(picture) if picture is not None else None
    with fitting(" or ".join(names)):
        sides = logic.sides_of(read_alone(home, root), names)
        comparison, mlflow = logic.compare(sides, all_), page(sides)
    if target is not None:
        from nbrl.tasks.comparison.page import draw

        put(target, draw(comparison.sides))
    if as_json:
        print(json.dumps({**comparison.model_dump(mode="json"), "mlflow": mlflow.model_dump(), "picture": str(target or "")}))
        return
    out.print(render(comparison), crop=False)
    if target is not None:
        out.print(f"picture  {target}", markup=False, highlight=False, soft_wrap=True)
    where = mlflow.address or f"no page, for {mlflow.why}"
    if mlflow.address.startswith("/"):
        where = f"{mlflow.address} below the address that `nbrl ui` prints"
    out.print(f"MLflow   {where}", markup=False, highlight=False, soft_wrap=True)
