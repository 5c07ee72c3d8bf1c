"""`nbrl …`: thin commands over the flows. Heavy imports wait until a command needs them."""

from typing import Annotated

import typer

from nbrl.flows.cli import completion
from nbrl.flows.cli.agent import agent
from nbrl.flows.cli.audit import audit, track
from nbrl.flows.cli.ci import ci
from nbrl.flows.cli.compare import compare
from nbrl.flows.cli.data import data
from nbrl.flows.cli.deploy import deploy, schedule
from nbrl.flows.cli.evaluate import evaluate
from nbrl.flows.cli.guard import Guarded
from nbrl.flows.cli.init import init
from nbrl.flows.cli.logs import logs, stop
from nbrl.flows.cli.model import model
from nbrl.flows.cli.prepare import prepare
from nbrl.flows.cli.promote import promote
from nbrl.flows.cli.published import publish_run
from nbrl.flows.cli.resume import resume
from nbrl.flows.cli.serve import serve
from nbrl.flows.cli.show import runs, show
from nbrl.flows.cli.stored import Home, Root, Set, export, home_at, overrides_of, storage_at
from nbrl.flows.cli.train import train
from nbrl.flows.cli.warmstart import distill, warmstart
from nbrl.flows.display.terminal import out

app = typer.Typer(
    cls=Guarded,
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Reinforcement learning of notebook agents.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"nbrl {version('nbrl')}")
        raise typer.Exit


@app.callback()
def _program(
    version: Annotated[
        bool, typer.Option("--version", help="print the version and exit", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Take the options before a command."""


app.command()(init)
app.command()(agent)


app.command()(train)
app.command()(resume)
app.command()(audit)
app.command()(publish_run)
app.command()(track)
app.command()(promote)
app.command()(evaluate)
app.add_typer(data, name="data")
app.add_typer(model, name="model")
app.command()(prepare)
app.command()(runs)
app.command()(compare)
app.command()(ci)
app.command()(export)
app.command()(show)
app.command()(serve)
app.command()(deploy)
app.command()(schedule)
app.command()(logs)
app.command()(stop)


@app.command()
def doctor(
    recipe: Annotated[str, typer.Option(help="recipe to check", autocompletion=completion.recipes)] = "tiny-cpu",
    home: Home = None,
    overrides: Set = None,
) -> None:
    """Check sandbox, engine, Ray, a cluster's machines, storage, MLflow, Prefect and GPU; say what is wrong and how to fix it."""
    from nbrl.flows.cli.doctor import checkup
    from nbrl.tasks.runs.recipes import load

    good = True
    for name, works, message in checkup(load(recipe, overrides_of(home, overrides))):
        good &= works
        out.print("[green]✓[/]" if works else "[red]✗[/]", end=" ")
        out.print(f"{name}: {message}", markup=False, highlight=False)
    if not good:
        raise typer.Exit(1)


@app.command()
def ui(
    home: Home = None,
    root: Root = None,
    host: Annotated[
        str,
        typer.Option(help="address of the trajectories; every client that reaches it can read those of the whole storage"),
    ] = "127.0.0.1",
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="a further name by which browsers may ask for trajectories, as behind a proxy; repeatable"
        ),
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=1024, max=65534, help="port of the trajectories; MLflow takes the next", show_default="any")
    ] = None,
    tracking_uri: Annotated[
        str | None, typer.Option(help="the MLflow to show, as tracking.uri in a recipe", show_default="that of the newest run")
    ] = None,
    trajectories: Annotated[
        bool, typer.Option("--trajectories", help="show the trajectories alone, without MLflow and Prefect")
    ] = False,
) -> None:
    """Serve pages until Ctrl-C: trajectories of a storage, MLflow and Prefect."""
    from nbrl.flows.cli.ui import serve
    from nbrl.infra.home import Home as LocalHome

    serve(LocalHome(home_at(home)), storage_at(home, root), host, allowed_host or [], port, tracking_uri, out, not trajectories)


app.command()(warmstart)


app.command()(distill)
