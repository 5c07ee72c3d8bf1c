"""`nbrl prepare`."""

import shlex
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from nbrl.flows.cli import completion
from nbrl.flows.cli.guard import on_stop
from nbrl.flows.cli.run_flow import run_flow
from nbrl.flows.cli.stored import Home, home_at
from nbrl.flows.display.terminal import out, plain, say
from nbrl.infra.paths import expanded


def prepare(
    recipe: Annotated[Path, typer.Argument(help="a YAML file, such as examples/prepare/recipe.yaml")],
    folder: Annotated[Path, typer.Option("--out", help="folder to write to; an unfinished preparation in it is continued")],
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="override a setting, e.g. rate.min_stability=0",
            autocompletion=completion.prepare_keys,
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="check files, keys and the folder, print the plan and exit")] = False,
    home: Home = None,
) -> None:
    """Make training questions of several files: merge, deduplicate, decontaminate, rate, split, with a data card."""
    from nbrl.tasks.prepare.preflight import check, load, plan

    settings, target = load(recipe, set_ or [], place := home_at(home)), expanded(folder).absolute()
    counts = check(settings, target)
    if dry_run:
        out.print(plan(settings, folder, counts), markup=False, highlight=False, soft_wrap=True)
        return
    if not counts.evaluation:
        say("warning: the recipe lists no evaluation files, so nothing is decontaminated", "yellow")

    async def flow() -> Any:
        from nbrl.flows.prepare import prepare as flow

        return await flow(settings, target, place)

    on_stop(lambda: "the same command continues; no finished stage is done and no reply is paid for again")
    card = run_flow(place, flow)
    for name in _empty(card):
        say(f"warning: {folder / name} has no questions: there are too few for its share", "yellow")
    out.print(_summary(card))
    out.print(_closing(card, folder), markup=False, highlight=False, soft_wrap=True)


def _empty(card: dict[str, Any]) -> list[str]:
    return [name for name, each in card["outputs"].items() if not each["rows"] and name != "dropped.parquet"]


def _summary(card: dict[str, Any]) -> Table:
    """Return what each stage kept and dropped."""
    table = Table("stage", "in", "kept", "dropped, and why", title="questions", title_justify="left")
    for each in card["stages"]:
        why = "\n".join(f"{count} {reason}" for reason, count in each["dropped"].items())
        table.add_row(each["stage"], str(each["in"]), str(each["kept"]), plain(why))
    return table


def _closing(card: dict[str, Any], folder: Path) -> str:
    """Return the files, and the settings that use them, which must not be wrapped."""
    files = [f"{each['rows']:8} {folder / name}" for name, each in card["outputs"].items()]
    held_out = "held_out.parquet" if "held_out.parquet" in card["outputs"] else "train.parquet"
    settings = f"{{kind: files, train: {folder / 'train.parquet'}, held_out: {folder / held_out}}}"
    use = f"use them    --set {shlex.quote(f'environments={{prepared: {settings}}}')}"
    return "\n".join([*files, f"data card   {folder / 'card.md'}", use])
