"""`nbrl train`."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from nbrl.flows.cli import completion
from nbrl.flows.cli.guard import on_stop
from nbrl.flows.cli.run_flow import run_flow
from nbrl.flows.cli.stored import Home, MetricsPort, Recipe, Set, TakeOver, home_flag, overrides_of, root_flag
from nbrl.flows.display.terminal import out, say


def train(
    recipe: Recipe,
    run: Annotated[
        str | None, typer.Option(help="name of the run; an existing one is continued", autocompletion=completion.runs)
    ] = None,
    home: Home = None,
    set_: Set = None,
    take_over: TakeOver = False,
    metrics_port: MetricsPort = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="check everything, print the plan and exit")] = False,
    all_: Annotated[bool, typer.Option("--all", help="show every setting in a dry run, also those at their defaults")] = False,
    measure: Annotated[
        bool,
        typer.Option("--measure", help="a dry run that does one iteration, throws it away, and says what the training will take"),
    ] = False,
) -> None:
    """Train a policy: evaluate, iterate, evaluate. Prints at the end a table, a learning curve and the next commands."""

    def prepare() -> tuple[Any, str] | None:
        from nbrl.tasks.errors import ConfigError
        from nbrl.tasks.runs.preflight import prepared
        from nbrl.tasks.runs.run import checked_name, new_name

        name = None if run is None else checked_name(run)
        overrides = overrides_of(home, set_)
        start = prepared(recipe, overrides, "train", name)
        if all_ and not (dry_run or measure):
            raise ConfigError("--all is for a dry run; add --dry-run, or leave it out")
        if dry_run or measure:
            _plan(start, all_)
            if measure:
                _measure(start if run is None else prepared(recipe, overrides, "train"))
            return None
        return start, name or new_name(start.config.name)

    train_run(prepare, lambda name: f"the same command with --run {name} continues the run", take_over, metrics_port=metrics_port)


def train_run(
    prepare: Callable[[], tuple[Any, str] | None],
    how_to_continue: Callable[[str], str],
    take_over: bool,
    redo: Sequence[tuple[int, str]] = (),
    metrics_port: int | None = None,
    quiet: bool = False,
) -> None:
    """Train the run that `prepare` gives, what preflight returned and its name; after a stop, say how to continue.

    Its metrics are at `metrics_port` of this machine meanwhile. With `quiet` no table is printed at the end.
    """
    _check_metrics_port(metrics_port)
    if (prepared := prepare()) is None:
        return
    start, name = prepared
    config = start.config

    def remains() -> str:
        from nbrl.infra.storage import Storage
        from nbrl.tasks.runs.run import find_run

        return "" if find_run(Storage(config.storage), name) is None else how_to_continue(name)

    on_stop(remains)

    async def flow() -> Any:
        from nbrl.flows.train import train as flow

        return await flow(start, name, take_over=take_over, redo=list(redo))

    with _metrics_served(config, name, metrics_port):
        summary = run_flow(config.home, flow, config.ray if _is_left(config, name, take_over, redo) else None)
    if quiet:
        return
    from nbrl.flows.display.pages import closing, report

    out.print(report(summary))
    out.print(closing(summary, root_flag(config), home_flag(config)), markup=False, highlight=False, soft_wrap=True)


def _check_metrics_port(port: int | None) -> None:
    """Raises ConfigError if the port is taken, before the checks of a start, which take seconds."""
    from nbrl.infra.process.child import port_in_use
    from nbrl.tasks.errors import ConfigError

    if port is not None and port_in_use(port):
        raise ConfigError(f"--metrics-port {port} is taken: end what listens there, or choose another")


@contextmanager
def _metrics_served(config: Any, name: str, port: int | None) -> Iterator[None]:
    """Serve the metrics of a run on this machine, if a port is given. Raises ServerError if that cannot begin."""
    if port is None:
        yield
        return
    from nbrl.flows.pages.metrics import metrics_app
    from nbrl.flows.pages.serving import served
    from nbrl.infra.storage import Storage

    with served(metrics_app(Storage(config.storage), name), "127.0.0.1", port):
        yield


def _is_left(config: Any, name: str, take_over: bool, redo: Sequence[tuple[int, str]]) -> bool:
    """Return whether the run has work left, for which Ray is started. Raises HeldError if another process does it."""
    from nbrl.infra.storage import Storage
    from nbrl.tasks.runs.history import finished
    from nbrl.tasks.runs.lease import holder_to_stop
    from nbrl.tasks.runs.run import find_run

    storage = Storage(config.storage)
    if (run := find_run(storage, name)) is None:
        return True
    if not redo and finished(run, config, storage) is not None:
        return False
    holder_to_stop(storage, run.layout, take_over)
    return True


def _plan(start: Any, every: bool) -> None:
    """Make all checks of a dry run, also the slow ones, and print what the run would do."""
    from nbrl.tasks.runs.plan import plan
    from nbrl.tasks.runs.preflight import rehearse
    from nbrl.tasks.runs.warnings import warnings_of

    config = start.config
    unchecked = rehearse(config)
    for warning in warnings_of(start):
        say(f"warning: {warning}", "yellow")
    out.print(plan(config, every), markup=False, highlight=False, soft_wrap=True)
    for note in unchecked:
        say(f"not checked: {note}", "yellow")


def _measure(start: Any) -> None:
    """Print what one iteration took, and what the training will take by it."""
    from nbrl.tasks.errors import ConfigError
    from nbrl.tasks.runs.measured import in_lines

    if start.config.recorded is not None:
        raise ConfigError("--measure makes its trajectories itself, and this run learns from recorded sessions; leave it out")

    async def flow() -> Any:
        from nbrl.flows.measure import measure

        return await measure(start)

    out.print(
        in_lines(run_flow(start.config.home, flow, start.config.ray), start.config), markup=False, highlight=False, soft_wrap=True
    )
