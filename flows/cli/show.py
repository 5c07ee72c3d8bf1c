"""`nbrl runs` and `nbrl show`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nbrl.flows.cli import completion
from nbrl.flows.cli.stored import Home, Root, Trust, read_alone
from nbrl.flows.display.terminal import out

if TYPE_CHECKING:
    from nbrl.flows.display.wanted import Wanted
    from nbrl.infra.storage import Storage


def runs(
    home: Home = None,
    root: Root = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the rows as JSON")] = False,
) -> None:
    """List all runs and evaluations, the newest first: their states, iterations and scores.

    first, last and best are held-out scores, rollouts is the success of the newest iteration's own trajectories.
    """
    _runs(read_alone(home, root), as_json)


def _runs(storage: "Storage", as_json: bool = False) -> None:
    from nbrl.flows.display.tables import overview
    from nbrl.tasks.comparison import overview as logic

    rows = logic.overview(storage)
    if as_json:
        print(json.dumps([row.model_dump(mode="json") for row in rows]))
        return
    out.print(overview(rows, storage.settings.root), crop=False)


def show(
    trajectory: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN[@N][/TRAJECTORY]",
            help="with the name of a run or evaluation, list its trajectories, those of the evaluation after N updates with @N; "
            "with an id, show that one; without, list all runs",
            autocompletion=completion.runs_and_evaluations,
        ),
    ] = None,
    home: Home = None,
    root: Root = None,
    limit: Annotated[
        int, typer.Option(min=1, help="maximum rows of a list of trajectories, of which the newest come first")
    ] = 40,
    status: Annotated[str, typer.Option(help="list those that ended like this", show_default=False)] = "",
    iteration: Annotated[int | None, typer.Option(min=1, metavar="N", help="list those of this iteration")] = None,
    held_out: Annotated[bool, typer.Option("--held-out", help="list those of held-out evaluations")] = False,
    ability: Annotated[str, typer.Option(help="list those of this ability", show_default=False)] = "",
    environment: Annotated[str, typer.Option(help="list those of this environment", show_default=False)] = "",
    best: Annotated[int | None, typer.Option(min=1, metavar="N", help="list the N with the highest rewards")] = None,
    worst: Annotated[int | None, typer.Option(min=1, metavar="N", help="list the N with the lowest rewards")] = None,
    group: Annotated[
        str,
        typer.Option(
            metavar="ID", help="the trajectories of one question side by side; also by the id of one of them", show_default=False
        ),
    ] = "",
    notebook: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.ipynb", help="write the trajectory, its newest copy, as a Jupyter notebook instead of showing it"
        ),
    ] = None,
    children: Annotated[
        bool, typer.Option("--children", help="show all that children did, which are a line each otherwise")
    ] = False,
    replay: Annotated[
        bool, typer.Option("--replay", help="play the session of the trajectory again by its recorded calls, and compare")
    ] = False,
    trust: Trust = False,
    html: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.html", help="write the trajectory, all copies of it, as a page for a browser instead of showing it"
        ),
    ] = None,
) -> None:
    """List runs and trajectories, or read one: what the agent thought, ran and saw, and what it earned."""
    from nbrl.flows.display.wanted import Wanted
    from nbrl.tasks.errors import ConfigError
    from nbrl.tasks.runs.run import named

    name, _, identity = (trajectory or "").partition("/")
    run, updates = named(name) if trajectory is not None else ("", None)
    filters = Wanted(status, ability, environment, iteration, updates, held_out, best, worst)
    _check(run, identity, filters, group, notebook, html)
    if replay and (not identity or notebook is not None or html is not None):
        raise ConfigError(
            "--replay plays the session of one trajectory; name it as RUN/TRAJECTORY, without --notebook and --html"
        )
    if children and (not identity or replay or notebook is not None or html is not None):
        raise ConfigError("--children unfolds one trajectory in the terminal; name it as RUN/TRAJECTORY, without another output")
    if trust and not replay:
        raise ConfigError("--trust acts only with --replay, which runs the code of the run's environments; leave it out")
    storage = read_alone(home, root)
    if trajectory is None:
        _runs(storage)
    elif replay:
        _replay(storage, run, identity, filters, trust)
    else:
        _show(storage, run, identity, limit, filters, group, notebook, html, children)


def _replay(storage: "Storage", run: str, identity: str, wanted: "Wanted", trust: bool) -> None:
    from nbrl.flows.display.listing import find
    from nbrl.flows.display.sessions import replayed
    from nbrl.tasks.layout.runs import title_of

    key, match, _ = find(storage, run, identity, wanted)[-1]
    sentence, same = replayed(storage, key, run, match, trust)
    out.print(f"{title_of(key)}: {sentence}", markup=False, highlight=False, soft_wrap=True)
    if not same:
        raise typer.Exit(1)


def _check(run: str, identity: str, wanted: "Wanted", group: str, path: Path | None, html: Path | None) -> None:
    """Raises ConfigError for options that cannot act together."""
    from nbrl.flows.display.wanted import Wanted
    from nbrl.tasks.errors import ConfigError, did_you_mean

    of_places = Wanted(iteration=wanted.iteration, updates=wanted.updates, held_out=wanted.held_out)
    if not run and (group or wanted != Wanted()):
        raise ConfigError("--group and the filters choose from the trajectories of a run or evaluation; name one")
    if identity and (group or wanted != of_places):
        raise ConfigError("with an id, only @N, --iteration and --held-out choose; leave out --group and the other filters")
    for option, file in (("--notebook", path), ("--html", html)):
        if file is not None and not identity:
            lists = f"nbrl show {run or 'RUN'}"
            raise ConfigError(f"{option} writes one trajectory; name it as {run or 'RUN'}/TRAJECTORY (`{lists}` lists them)")
    if path is not None and html is not None:
        raise ConfigError("--notebook and --html each write one file; give one of them")
    if wanted.status:
        from nbrl.agent.trajectory import Status

        statuses = [status.value for status in Status]
        if wanted.status not in statuses:
            raise ConfigError(f"no trajectory ends as {wanted.status!r}; {did_you_mean(wanted.status, statuses)}")
    if wanted.iteration is not None and (wanted.held_out or wanted.updates is not None):
        raise ConfigError("--iteration lists what was trained on, --held-out and @N what was not; leave one of them out")
    if wanted.best is not None and wanted.worst is not None:
        raise ConfigError("--best and --worst sort differently; leave one of them out")
    if group and wanted != of_places:
        raise ConfigError("--group shows all trajectories of a question; besides it only @N, --iteration and --held-out act")


def _show(
    storage: "Storage",
    run: str,
    identity: str,
    limit: int,
    wanted: "Wanted",
    group: str,
    notebook: Path | None,
    html: Path | None,
    children: bool,
) -> None:
    from nbrl.flows.display.listing import find, listing
    from nbrl.flows.display.trajectory import render, side_by_side
    from nbrl.tasks.layout.runs import title_of
    from nbrl.tasks.runs.kept import fitting

    with fitting(run):
        if group:
            out.print(side_by_side(storage, run, group, out.width, wanted), crop=False)
            return
        if not identity:
            out.print(listing(storage, run, limit, out.width, wanted), crop=False)
            return
        found = find(storage, run, identity, wanted)
        if notebook is None and html is None:
            for key, match, rewards in found:
                out.print(render(title_of(key), match, rewards, children))
            return
        from nbrl.flows.display.saved import put, save, writable

        if html is not None:
            from nbrl.flows.pages.app import page

            put(writable(html), page(storage, run, [key for key, _, _ in reversed(found)], identity).encode())
            written = f"{html}   {', '.join(title_of(key) for key, _, _ in found)}"
        elif notebook is not None:
            key, match, rewards = found[-1]
            save(writable(notebook), match, rewards)
            others = ", ".join(title_of(each) for each, _, _ in found[:-1])
            written = f"{notebook}   {title_of(key)}{f'; --iteration N or RUN@N chooses {others}' if others else ''}"
        out.print(written, markup=False, highlight=False, soft_wrap=True)
