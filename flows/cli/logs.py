"""`nbrl logs` and `nbrl stop`."""

import time
from typing import TYPE_CHECKING, Annotated

import typer

from nbrl.flows.cli import completion
from nbrl.flows.cli.guard import on_stop
from nbrl.flows.cli.stored import Home, Root, read_alone
from nbrl.flows.display.terminal import out, plain, say

if TYPE_CHECKING:
    from nbrl.infra.storage import Storage
    from nbrl.tasks.layout.runs import RunLayout

POLL_S = 2.0
Name = Annotated[str, typer.Argument(help="name of a run or an evaluation", autocompletion=completion.runs_and_evaluations)]


def logs(
    run: Name,
    home: Home = None,
    root: Root = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="go on with new lines until Ctrl-C")] = False,
) -> None:
    """Print the lines of all starts of a run or an evaluation, with times in UTC; from its storage, of any machine."""
    from nbrl.tasks.runs.logs import Reader

    storage = read_alone(home, root)
    layout = _layout(storage, run)
    reader = Reader(storage, layout)
    while True:
        for line in reader.lines():
            out.print(plain(line), soft_wrap=True, highlight=False)
        if not follow:
            break
        time.sleep(POLL_S)
    if not reader.found:
        say(f"{layout.title} has no lines: nothing was printed before it ended", "yellow")


def stop(run: Name, home: Home = None, root: Root = None) -> None:
    """End the process that works on a run or an evaluation, on whatever machine; the run can be continued."""
    from nbrl.tasks.runs.stop import stop

    on_stop(lambda: "the process ends nevertheless")
    storage = read_alone(home, root)
    layout = _layout(storage, run)
    held = stop(storage, layout, say)
    out.print(f"{layout.title} was stopped: process {held.pid} on {held.epoch.host} has ended", markup=False, highlight=False)


def _layout(storage: "Storage", name: str) -> "RunLayout":
    """Return the run of this name or, if there is none, the evaluation. Raises ConfigError if there is neither."""
    from nbrl.tasks.layout.runs import EVALUATIONS, RUNS
    from nbrl.tasks.runs.run import checked_name, find_run, unknown

    run = find_run(storage, checked_name(name)) or find_run(storage, name, EVALUATIONS)
    if run is None:
        raise unknown(storage, name, RUNS, EVALUATIONS)
    return run.layout
