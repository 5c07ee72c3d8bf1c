"""`nbrl resume`."""

from typing import Annotated, Any

import typer

from nbrl.flows.cli import completion
from nbrl.flows.cli.stored import Home, MetricsPort, Root, Set, TakeOver, Trust, overrides_of, storage_at
from nbrl.flows.cli.train import train_run


def resume(
    run: Annotated[str, typer.Argument(help="a run's name", autocompletion=completion.runs)],
    set_: Set = None,
    home: Home = None,
    root: Root = None,
    redo: Annotated[
        str | None,
        typer.Option(
            metavar="ITERATION[:NODE]",
            help="put an iteration, or one node of it, and the records of all later iterations aside, and do them again",
        ),
    ] = None,
    take_over: TakeOver = False,
    trust: Trust = False,
    metrics_port: MetricsPort = None,
) -> None:
    """Continue a run with the settings of its last start, from its storage alone: on this machine or on another.

    `--set` may change what decides no result, such as iterations, home or policy.path.
    """
    chosen: list[tuple[int, str]] = []

    def prepare() -> tuple[Any, str]:
        from nbrl.tasks.runs.preflight import preflight
        from nbrl.tasks.runs.recipes import trusted_config
        from nbrl.tasks.runs.redo import parse
        from nbrl.tasks.runs.run import checked_name

        if redo is not None:
            chosen.append(parse(redo))
        config = trusted_config(storage_at(home, root), checked_name(run), overrides_of(home, set_), trust)
        return preflight(config, "train", run), run

    train_run(prepare, lambda name: "the same command continues the run", take_over, chosen, metrics_port)
