"""`nbrl deploy` and `nbrl schedule`."""

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from nbrl.flows.cli import completion
from nbrl.flows.cli.guard import on_stop
from nbrl.flows.cli.run_flow import in_environment
from nbrl.flows.cli.stored import Home, Root, Set, Trust, home_at, request_of, root_at
from nbrl.flows.display import terminal
from nbrl.flows.display.terminal import say

if TYPE_CHECKING:
    from prefect.deployments.runner import RunnerDeployment

URL = "PREFECT_API_URL"
Kind = Annotated[
    Literal["train", "evaluate", "prepare", "clean", "nightly"] | None,
    typer.Argument(
        metavar="[train|evaluate|prepare|clean|nightly]", help="by default train and evaluate the run, and clean its storage"
    ),
]
RecipeOption = Annotated[
    str,
    typer.Option(
        help="recipe of the run, or YAML file of a preparation or of nightly trainings; by default the run's own",
        autocompletion=completion.recipes,
    ),
]
RunOption = Annotated[str, typer.Option(help="run that is trained, evaluated or cleaned", autocompletion=completion.runs)]
Cron = Annotated[
    str,
    typer.Option(
        metavar="'M H D M W'",
        help="when it starts; by default evaluations and nightly trainings every night, preparations and cleaning every week, "
        "training by hand",
        show_default=False,
    ),
]
Out = Annotated[str, typer.Option(help="folder of a preparation", show_default=False)]
Web = Annotated[str, typer.Option(metavar="URL", help="POST there what failed and what got worse", show_default=False)]


def deploy(
    context: typer.Context,
    kind: Kind = None,
    recipe: RecipeOption = "",
    run: RunOption = "",
    cron: Cron = "",
    pool: Annotated[str, typer.Option(help="work pool; created for processes if there is none")] = "nbrl",
    out: Out = "",
    webhook: Web = "",
    home: Home = None,
    root: Root = None,
    set_: Set = None,
    trust: Trust = False,
) -> None:
    """Register deployments for workers to run: at PREFECT_API_URL, or at the home's own server. Repeating it is safe."""
    given = os.environ.get(URL, "")  # in_environment sets it for the home's own server
    with _described(context) as (deployments, _):
        from nbrl.flows.registration import register

        kind_of_pool = asyncio.run(register(deployments, pool, Path.cwd()))
        _list(deployments)
        _say_how_to_start(kind_of_pool, pool, given)


def schedule(
    context: typer.Context,
    kind: Kind = None,
    recipe: RecipeOption = "",
    run: RunOption = "",
    cron: Cron = "",
    out: Out = "",
    webhook: Web = "",
    home: Home = None,
    root: Root = None,
    set_: Set = None,
    trust: Trust = False,
) -> None:
    """Register deployments and run them on this machine when they are due, until Ctrl-C, which ends running ones too."""
    on_stop(lambda: "the same command goes on")
    with _described(context) as (deployments, url):
        from nbrl.flows.registration import serve

        _list(deployments)
        say(f"waiting for them to be due; Prefect's pages are at {url.removesuffix('/api')}; Ctrl-C ends everything")
        serve(deployments)


@contextmanager
def _described(context: typer.Context) -> "Iterator[tuple[list[RunnerDeployment], str]]":
    """Give the deployments that the options of a command describe, and the address of Prefect's server, while it answers."""
    given, shared = context.params, os.environ.get(URL, "")  # the home's own server is this user's alone
    with in_environment(home_at(given["home"]), shared) as url:
        from nbrl.flows.automations import keep_automations
        from nbrl.flows.deployments import DeployOptions, deployments_of
        from nbrl.flows.registration import answered

        home, root = home_at(given["home"]), root_at(given["home"], given["root"])
        places = {"root": root} | ({"home": home} if given["home"] is not None else {})
        deployments = deployments_of(request_of(context, DeployOptions, **places))
        with answered():
            asyncio.run(keep_automations(given["webhook"], only=not shared))
            yield deployments, url


def _list(deployments: "list[RunnerDeployment]") -> None:
    from prefect.client.schemas.schedules import CronSchedule

    for each in deployments:
        crons = [one.schedule.cron for one in each.schedules or [] if isinstance(one.schedule, CronSchedule)]
        when = ", ".join(crons) or "by hand"
        terminal.out.print(f"{each.full_name}   {when}", markup=False, highlight=False, soft_wrap=True)


def _say_how_to_start(kind: str, pool: str, url: str) -> None:
    worker = f"{Path(sys.executable).with_name('prefect')} worker start --pool {pool} --type {kind}"
    if url:
        lines = ["start a worker:", f"  {URL}={url} {worker}"]
    else:
        lines = [
            "this home's own server serves only while a command of nbrl runs; to run them on this machine, without a worker:",
            "  nbrl schedule, with the same options",
            f"or set {URL} to a server that stays, deploy again, and start a worker:",
            f"  {worker}",
        ]
    terminal.out.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)
