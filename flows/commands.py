"""`nbrl …`: thin commands over the flows. Heavy imports wait until a command needs them."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from nbrl.flows import completion
from nbrl.flows.agent_command import agent
from nbrl.flows.completion import ROOT
from nbrl.flows.interrupt import Importing
from nbrl.flows.run_flow import run_flow
from nbrl.flows.stored_commands import export, show
from nbrl.flows.terminal import guard, out, say

app = typer.Typer(
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Reinforcement learning of notebook agents.",
)
HOME = ".nbrl"
Recipe = Annotated[str, typer.Argument(help="a recipe's name, or the path of a YAML file", autocompletion=completion.recipes)]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="override a setting, e.g. update.lr=1e-4", autocompletion=completion.recipe_keys
    ),
]
Home = Annotated[str, typer.Option(help="folder of the local servers' state and logs")]


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"nbrl {version('nbrl')}")
        raise typer.Exit


@app.callback()
def _program(
    version: Annotated[
        bool, typer.Option("--version", help="print the version and stop", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """What stands before a command."""


def _home(folder: str) -> str:
    from nbrl.tasks.errors import ConfigError

    if not folder.strip():
        raise ConfigError("--home is empty; give a folder, or leave it out")
    return folder


def _root_flag(config: Any) -> str:
    """What `nbrl show` must be told to find this run's storage."""
    return "" if config.storage.root == ROOT else f" --root {config.storage.root}"


def _home_flag(config: Any) -> str:
    """What `nbrl ui` must be told to show this run's pages."""
    return "" if config.home == HOME else f" --home {config.home}"


app.command()(agent)


@app.command()
def train(
    recipe: Recipe,
    run: Annotated[
        str | None, typer.Option(help="name of the run; an existing one is continued", autocompletion=completion.runs)
    ] = None,
    set_: Set = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the resolved plan and stop")] = False,
) -> None:
    """Train a policy: evaluate, iterate, evaluate. Ends with a table, a learning curve and what to type next."""
    begun: list[Callable[[], bool]] = []
    name = run

    def stopped() -> str:
        return f"the same command with --run {name} continues where it was" if begun and begun[0]() else ""

    def work() -> None:
        nonlocal name
        with Importing():
            from nbrl.infra.storage import Storage
            from nbrl.tasks.runs.preflight import prepared
            from nbrl.tasks.runs.run import checked_name, find_run, new_name

        config = prepared(recipe, set_ or [], "train")
        if dry_run:
            _plan(config)
            return
        name = checked_name(new_name(config.name) if run is None else run)
        begun.append(lambda: find_run(Storage(config.storage), str(name)) is not None)

        async def flow() -> Any:
            from nbrl.flows.train import train as flow

            return await flow(config, name)

        summary = run_flow(config.home, flow)
        from nbrl.flows.report import closing, report

        out.print(report(summary))
        out.print(closing(summary, _root_flag(config), _home_flag(config)), markup=False, highlight=False, soft_wrap=True)

    guard(work, stopped)


def _plan(config: Any) -> None:
    """Check what a dry run takes the time for, and print what the run would do."""
    from nbrl.tasks.runs.data_review import review
    from nbrl.tasks.runs.plan import plan
    from nbrl.tasks.runs.preflight import rehearse

    for warning in review(config):
        say(f"warning: {warning}", "yellow")
    unchecked = rehearse(config)
    out.print(plan(config), markup=False, highlight=False, soft_wrap=True)
    for note in unchecked:
        say(f"not checked: {note}", "yellow")


@app.command()
def evaluate(
    recipe: Recipe,
    run: Annotated[
        str | None,
        typer.Option(help="evaluate a checkpoint of this run instead of the recipe's policy", autocompletion=completion.runs),
    ] = None,
    checkpoint: Annotated[int | None, typer.Option(help="number of updates of the checkpoint; the newest when not given")] = None,
    name: Annotated[str | None, typer.Option(help="name of the evaluation; made of recipe and time when not given")] = None,
    set_: Set = None,
) -> None:
    """Evaluate a policy on the recipe's held-out questions: exact match and F1, all trajectories kept."""
    begun: list[str] = []

    def stopped() -> str:
        return f"evaluation {begun[0]} stays unfinished, evaluate again under another --name" if begun else ""

    def work() -> None:
        with Importing():
            from nbrl.tasks.errors import ConfigError
            from nbrl.tasks.runs.preflight import prepared
            from nbrl.tasks.runs.run import checked_name, new_name

        if checkpoint is not None and run is None:
            raise ConfigError("--checkpoint names a checkpoint of a run; give --run too")
        config = prepared(recipe, set_ or [], "evaluate")
        source = None if run is None else checked_name(run)
        evaluation = checked_name(new_name(source or config.name) if name is None else name)

        async def flow() -> Any:
            from nbrl.flows.evaluate import evaluate as flow

            return await flow(config, source, checkpoint, evaluation)

        begun.append(evaluation)
        for metric, value in sorted(run_flow(config.home, flow).items()):
            out.print(f"{metric:20} {value:.6g}", highlight=False)
        out.print(f"nbrl show {evaluation}{_root_flag(config)}", highlight=False, soft_wrap=True)

    guard(work, stopped)


app.command()(export)
app.command()(show)


@app.command()
def doctor(
    recipe: Annotated[str, typer.Option(help="check for this recipe", autocompletion=completion.recipes)] = "tiny-cpu",
) -> None:
    """Check sandbox, engine, Ray, storage, MLflow, Prefect and GPU; say what is wrong and how to mend it."""

    def work() -> bool:
        with Importing():
            from nbrl.flows.checkup import checkup
            from nbrl.tasks.runs.recipes import load

        good = True
        for name, works, message in checkup(load(recipe)):
            good &= works
            out.print("[green]✓[/]" if works else "[red]✗[/]", end=" ")
            out.print(f"{name}: {message}", markup=False, highlight=False)
        return good

    if not guard(work):
        raise typer.Exit(1)


@app.command()
def ui(home: Home = HOME) -> None:
    """Serve the MLflow and Prefect pages of this folder until Ctrl-C."""

    def work() -> None:
        with Importing():
            from nbrl.flows.pages import serve

        serve(_home(home), out)

    guard(work)


@app.command()
def warmstart(
    folder: Annotated[Path, typer.Argument(help="where the model folder is written; it must not exist yet")],
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="override a setting, e.g. steps=500", autocompletion=completion.warmstart_keys
        ),
    ] = None,
    home: Home = HOME,
) -> None:
    """Make the tiny policy again from nothing: tokenizer, demonstrations, supervised training."""
    guard(lambda: _warmstart(folder, set_ or [], home), lambda: "nothing was written")


def _warmstart(folder: Path, overrides: list[str], home: str) -> None:
    with Importing():
        from nbrl.tasks.errors import ConfigError
        from nbrl.tasks.runs.recipes import with_overrides
        from nbrl.tasks.warmstart.settings import WarmstartSettings

    if folder.exists():
        raise ConfigError(f"{folder} exists; name a folder that does not, nothing is overwritten")
    settings = with_overrides(WarmstartSettings, overrides)

    async def work() -> Any:
        from nbrl.flows.warmstart import run

        return await run(settings, folder)

    metrics = run_flow(_home(home), work)
    for key, value in sorted(metrics.items()):
        out.print(f"{key:20} {value:.4g}", highlight=False)
