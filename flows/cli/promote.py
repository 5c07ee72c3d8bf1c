"""`nbrl promote`."""

import shlex
from typing import Annotated

import typer

from nbrl.flows.cli import completion
from nbrl.flows.cli.stored import Home, Root, Set, Trust, overrides_of, storage_at
from nbrl.flows.display.terminal import out, say


def promote(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN[@N]",
            help="a run, and the number of updates of its checkpoint; the newest one without",
            autocompletion=completion.runs,
        ),
    ],
    home: Home = None,
    root: Root = None,
    set_: Set = None,
    trust: Trust = False,
) -> None:
    """Make a checkpoint the champion of its recipe: its files are checked and kept from then on, and MLflow gives it the alias.

    `--set tracking.uri=…` and `--home …` name another MLflow than the run began with.
    """
    from nbrl.infra.errors import ServerError
    from nbrl.infra.home import Home as LocalHome
    from nbrl.tasks.runs.recipes import check_acting, trusted_config
    from nbrl.tasks.runs.run import named
    from nbrl.tasks.tracking.promote import promote as make_champion
    from nbrl.tasks.tracking.promote import show_champion

    overrides = overrides_of(home, set_)
    check_acting(overrides, ("home", "tracking"))
    storage, (name, updates) = storage_at(home, root), named(run)
    config = trusted_config(storage, name, overrides, trust, used=("home", "tracking"))
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
