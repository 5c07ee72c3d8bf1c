"""`nbrl train`."""

from collections.abc import Callable
from typing import Annotated, Any

import typer

from nbrl.flows.cli import completion
from nbrl.flows.cli.guard import guard
from nbrl.flows.cli.interrupt import Importing
from nbrl.flows.cli.options import Recipe, Set, home_flag, root_flag
from nbrl.flows.cli.run_flow import run_flow
from nbrl.flows.display.terminal import out, say


def train(
    recipe: Recipe,
    run: Annotated[
        str | None, typer.Option(help="name of the run; an existing one is continued", autocompletion=completion.runs)
    ] = None,
    set_: Set = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="print the resolved plan and exit")] = False,
) -> None:
    """Train a policy: evaluate, iterate, evaluate. Prints at the end a table, a learning curve and the next commands."""
    begun: list[Callable[[], bool]] = []
    name = run

    def stopped() -> str:
        return f"the same command with --run {name} continues the run" if begun and begun[0]() else ""

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
        from nbrl.flows.display.report import closing, report

        out.print(report(summary))
        out.print(closing(summary, root_flag(config), home_flag(config)), markup=False, highlight=False, soft_wrap=True)

    guard(work, stopped)


def _plan(config: Any) -> None:
    """Make all checks of a dry run, also the slow ones, and print what the run would do."""
    from nbrl.tasks.runs.data_review import review
    from nbrl.tasks.runs.plan import plan
    from nbrl.tasks.runs.preflight import rehearse

    for warning in review(config):
        say(f"warning: {warning}", "yellow")
    unchecked = rehearse(config)
    out.print(plan(config), markup=False, highlight=False, soft_wrap=True)
    for note in unchecked:
        say(f"not checked: {note}", "yellow")
