"""`nbrl warmstart` and `nbrl distill`."""

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from nbrl.flows.cli import completion
from nbrl.flows.cli.guard import on_stop
from nbrl.flows.cli.run_flow import run_flow
from nbrl.flows.cli.stored import Home, Root, Trust, home_at, home_option, read_alone, storage_at
from nbrl.flows.display.terminal import out
from nbrl.infra.paths import expanded


def warmstart(
    folder: Annotated[Path, typer.Argument(help="where to write the model folder; an unfinished warm start is continued")],
    start: Annotated[
        str | None,
        typer.Option("--from", help="model to start from: a Hugging Face folder, owner/name on the hub, or RUN or RUN@N"),
    ] = None,
    demonstrations: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE",
            help="what is demonstrated: world, a file or folder of trajectories (.parquet, .ipynb, .json), conversations "
            "(.jsonl), the address of such files, or a run, whose right answers are taken",
        ),
    ] = None,
    training: Annotated[
        str | None,
        typer.Option(
            metavar="RECIPE|RUN",
            help="the training that follows, whose agent the policy learns to be; by default that of --recipe, or the run of "
            "--from",
            autocompletion=completion.recipes,
        ),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            metavar="RECIPE",
            help="a warm start's recipe by name or path of a YAML file; by default `any` with --from, else `tiny`",
            autocompletion=completion.warmstarts,
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="override a setting, e.g. update.lr=1e-4", autocompletion=completion.warmstart_keys
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="check all settings, print the plan and exit")] = False,
    home: Home = None,
    root: Root = None,
    trust: Trust = False,
) -> None:
    """Teach a model to act by demonstrations, so that rewards can choose among its actions; the recipe `tiny` makes the model."""
    from nbrl.tasks.warmstart.recipe import WarmstartArguments, load
    from nbrl.tasks.warmstart.start import training_of

    on_stop(lambda: "nothing was written")
    storage = storage_at(home, root)
    settings = load(WarmstartArguments(recipe, start, training, demonstrations), set_ or [], storage)
    _warmstart(settings, training_of(settings, storage, trust), storage, expanded(folder).absolute(), home_at(home), dry_run)


def _warmstart(settings: Any, training: Any, storage: Any, target: Path, home: str, dry_run: bool) -> None:
    from nbrl.tasks.warmstart.orders import check, describe

    check(settings, training, storage, target, Path(home))
    if dry_run:
        out.print(describe(settings, training, target), markup=False, highlight=False, soft_wrap=True)
        return

    async def flow() -> Any:
        from nbrl.flows.warmstart import warmstart as flow

        return await flow(settings, training, storage, target, home)

    on_stop(lambda: "the same command continues")
    losses = run_flow(home, flow)
    shown = shlex.quote(str(target))
    lines = [
        *(f"{phase}: loss {loss:.3f} at the end" for phase, loss in losses.items()),
        f"wrote the policy to {target}",
        f"train it    {_trains(settings, training)} --set policy.path={shown}{home_option(home)}",
    ]
    out.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)


def _trains(settings: Any, training: Any) -> str:
    """Return the command that trains like the recipe or run of these settings, whose configuration is `training`."""
    from nbrl.tasks.runs.recipes import names

    if settings.training_run is None:
        return f"nbrl train {shlex.quote(settings.training)}"
    return f"nbrl train {training.name if training.name in names() else 'RECIPE'}"


def distill(
    run: Annotated[str, typer.Argument(help="a run's name", autocompletion=completion.runs)],
    file: Annotated[Path, typer.Argument(help="where to write the trajectories: NAME.parquet, or NAME.jsonl for conversations")],
    best: Annotated[
        int, typer.Option(min=1, help="how many right trajectories of each question: those with the highest rewards")
    ] = 1,
    home: Home = None,
    root: Root = None,
) -> None:
    """Write the right trajectories of a run's training as demonstrations, for `nbrl warmstart --demonstrations FILE`."""
    from nbrl.tasks.warmstart.recipe import write

    on_stop(lambda: "nothing was written")
    storage = read_alone(home, root)
    count = write(storage, run, best, expanded(file))
    shown = shlex.quote(str(file)) + storage.settings.option
    lines = [
        f"wrote {count} trajectories to {file}",
        f"learn them  nbrl warmstart OUT --from {shlex.quote(run)} --demonstrations {shown}",
    ]
    out.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)
