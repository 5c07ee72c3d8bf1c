"""`nbrl promote`."""

import shlex
from typing import Annotated

import typer

from nbrl.flows.cli import completion
from nbrl.flows.cli.stored import Home, Root, Set, Trust, overrides_of, storage_at
from nbrl.flows.display.terminal import out, say


def promote(
    run: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN[@N]]",
            help="a run, and the number of updates of its checkpoint; the newest one without",
            autocompletion=completion.runs,
        ),
    ] = None,
    if_better: Annotated[
        bool,
        typer.Option("--if-better", help="only if it is better than the champion on the same held-out questions"),
    ] = False,
    margin: Annotated[
        float | None,
        typer.Option(min=0.0, max=1.0, help="how much worse it may be in an ability, with --if-better; by default 0.02"),
    ] = None,
    back: Annotated[
        str | None, typer.Option(metavar="RECIPE", help="make the champion that this recipe had before its champion again")
    ] = None,
    home: Home = None,
    root: Root = None,
    set_: Set = None,
    trust: Trust = False,
) -> None:
    """Make a checkpoint the champion of its recipe: its files are checked and kept from then on, and MLflow gives it the alias.

    With `--if-better` the gain on the questions that both were asked must lie above 0 with all of its 95 % interval, and no
    ability may be worse than by the margin; else nothing changes, and the exit code is 1. `--set tracking.uri=…` and `--home …`
    name another MLflow than the run began with.
    """
    from nbrl.infra.errors import ServerError
    from nbrl.infra.home import Home as LocalHome
    from nbrl.tasks.comparison.gate import check_better
    from nbrl.tasks.errors import ConfigError
    from nbrl.tasks.runs.recipes import check_acting, trusted_config
    from nbrl.tasks.runs.run import named
    from nbrl.tasks.tracking.promote import former_of, show_champion
    from nbrl.tasks.tracking.promote import promote as make_champion

    overrides = overrides_of(home, set_)
    check_acting(overrides, ("home", "tracking"))
    if (run is None) == (back is None):
        raise ConfigError("name a run, or with --back a recipe; one of both")
    if (margin is not None and not if_better) or (if_better and back is not None):
        raise ConfigError("--margin is for --if-better, and that is for a run; leave it out")
    storage = storage_at(home, root)
    name, updates = named(run or "") if back is None else former_of(storage, back)
    config = trusted_config(storage, name, overrides, trust, used=("home", "tracking"))
    if if_better:
        out.print(check_better(storage, name, updates, 0.02 if margin is None else margin), highlight=False, markup=False)
    champion = make_champion(storage, name, updates)
    out.print(
        f"the champion of {champion.recipe} is run {champion.run} after {champion.updates} updates: "
        f"{storage.uri(champion.checkpoint)}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
    try:
        shown = show_champion(storage, champion, config.tracking, LocalHome(config.home))
    except ServerError as error:
        given = "".join(f" --set {shlex.quote(each)}" for each in overrides)
        track = f"nbrl track {name}{storage.settings.option}{given}"
        say(f"warning: the champion is recorded, and `{track}` delivers it to MLflow; {error}", "yellow")
    else:
        out.print(f"in MLflow: {shown}", highlight=False, markup=False, soft_wrap=True)
