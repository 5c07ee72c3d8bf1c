"""`nbrl audit` and `nbrl track`."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nbrl.flows.cli import completion
from nbrl.flows.cli.guard import on_stop
from nbrl.flows.cli.stored import Home, Root, Set, Trust, overrides_of, storage_at
from nbrl.flows.display.terminal import err, out, say

if TYPE_CHECKING:
    from nbrl.infra.storage import Storage
    from nbrl.tasks.audit.sessions import Replayed
    from nbrl.tasks.runs.config import RunConfig
    from nbrl.tasks.runs.run import Run

RECOMPUTED, DELIVERED = ("environments", "ray", "nodes"), ("home", "tracking")  # settings of the run that act here
RunName = Annotated[str, typer.Argument(help="a run's name", autocompletion=completion.runs)]


def audit(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="a run's name; or a published run: its folder, or an address", autocompletion=completion.runs
        ),
    ],
    home: Home = None,
    root: Root = None,
    replay: Annotated[
        int | None, typer.Option(metavar="ITERATION", help="do the update of this iteration again, and compare the weights")
    ] = None,
    signed_by: Annotated[
        Path | None, typer.Option("--signed-by", metavar="KEY.pub", help="whose signature a published run must have: an SSH key")
    ] = None,
    most_gb: Annotated[
        float | None,
        typer.Option("--most-gb", min=0, help="gigabytes that a published run may have", show_default="20"),
    ] = None,
    tracking: Annotated[bool, typer.Option(help="compare what MLflow has with the records")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="print the result as JSON")] = False,
    set_: Set = None,
    trust: Trust = False,
) -> None:
    """Prove from its storage, or as it was published, that a run is what its records say; exit code 1 and all contradictions
    otherwise.

    Prompts, rewards, selections and advantages are computed again, sessions of worlds are played again with the recorded calls,
    and every digest is compared.
    """
    from nbrl.flows.cli.published import audit_published, is_published
    from nbrl.infra.home import Home as LocalHome
    from nbrl.infra.tracking import Tracking
    from nbrl.tasks.audit.audit import Audit

    if is_published(run):
        if root is not None or not tracking:
            idle = "--no-tracking" if root is None else "--root"
            raise typer.BadParameter(f"it has no effect on a published run, which {run} is; leave it out", param_hint=idle)
        audit_published(run, home, replay, signed_by, most_gb, as_json, set_, trust)
        return
    if "/" in run:  # no run has such a name
        raise typer.BadParameter(f"there is no folder {run}, and it is no address of a web server", param_hint="RUN")
    for value, option in ((signed_by, "--signed-by"), (most_gb, "--most-gb")):
        if value is not None:
            raise typer.BadParameter(f"{run} is a run, and {option} is for a published one", param_hint=option)
    storage = storage_at(home, root)
    config, of_run = _run(storage, run, overrides_of(home, set_), trust, (*RECOMPUTED, *DELIVERED) if tracking else RECOMPUTED)
    mlflow = Tracking(config.tracking, LocalHome(config.home)) if tracking else None
    with err.status("") as status:
        checked = Audit(storage, config, of_run, status.update)
        found = list(checked.contradictions(mlflow, replay))
    updates = max((record.updates for record in checked.records), default=0)
    counts = {"iterations": len(checked.records), "updates": updates, "evaluations": len(checked.evaluations)}
    if as_json:
        contradictions = [{"where": each.where, "what": each.what} for each in found]
        sessions = asdict(checked.sessions)
        print(json.dumps({"run": run, **counts, "sessions": sessions, "replayed": replay, "contradictions": contradictions}))
    else:
        for each in found:
            say(f"{each.where}: {each.what}", "red")
        if not found:
            words = ", ".join(f"{count} {name}" for name, count in counts.items())
            out.print(f"run {run} is what its records say: {words}{_played(checked.sessions)}", highlight=False, markup=False)
    if found:
        raise typer.Exit(1)


def _played(sessions: "Replayed") -> str:
    """Return what became of the sessions of trajectories, where there are any."""
    parts = [
        (sessions.sessions, "sessions played again with the same answers and outcomes"),
        (sessions.not_replayable, "sessions of worlds that say they cannot be played again"),
        (sessions.in_part, "sessions recorded in part, as they said too much"),
    ]
    return "".join(f"; {count} {words}" for count, words in parts if count)


def track(
    run: Annotated[str, typer.Argument(help="name of a run or an evaluation", autocompletion=completion.runs_and_evaluations)],
    home: Home = None,
    root: Root = None,
    set_: Set = None,
    trust: Trust = False,
) -> None:
    """Deliver to MLflow, `tracking.tensorboard` and `tracking.wandb` what they lack of a run, from its storage alone.

    `--set tracking.uri=…` and `--home …` name another MLflow than the run began with.
    """
    from nbrl.infra.home import Home as LocalHome
    from nbrl.infra.tracking import Tracking
    from nbrl.tasks.evaluation.deliver import deliver as deliver_evaluation
    from nbrl.tasks.layout.runs import EVALUATIONS
    from nbrl.tasks.runs.lease import check_free
    from nbrl.tasks.runs.recipes import trusted_config
    from nbrl.tasks.runs.run import checked_name, find_run
    from nbrl.tasks.tracking.delivery import fill
    from nbrl.tasks.tracking.mlflow_sync import MlflowSync, deliver
    from nbrl.tasks.tracking.sinks import sinks_of

    on_stop(lambda: "the same command delivers the rest")
    storage = storage_at(home, root)
    if find_run(storage, checked_name(run)) is None and find_run(storage, run, EVALUATIONS) is not None:
        config = trusted_config(storage, run, overrides_of(home, set_), trust, EVALUATIONS, DELIVERED)
        out.print(f"MLflow at {deliver_evaluation(storage, config, run)} has evaluation {run}", highlight=False, markup=False)
        return
    config, known = _run(storage, run, overrides_of(home, set_), trust, DELIVERED)
    check_free(storage, known.layout)
    tracking = Tracking(config.tracking, LocalHome(config.home))
    delivered = deliver(MlflowSync(config, storage, known, tracking), tracking)
    fill(sinks_of(config, storage, known), lambda sink, what: say(f"warning: {sink} {what}", "yellow"))
    out.print(f"MLflow at {tracking.uri} has {delivered} iterations of run {run}", highlight=False, markup=False)


def _run(storage: "Storage", name: str, overrides: list[str], trust: bool, used: tuple[str, ...]) -> "tuple[RunConfig, Run]":
    from nbrl.tasks.runs.recipes import trusted_config
    from nbrl.tasks.runs.run import checked_name, known_run

    return trusted_config(storage, checked_name(name), overrides, trust, used=used), known_run(storage, name)
