"""Finds trajectories among the artifacts of runs and evaluations."""

from collections.abc import Collection, Iterator
from typing import Any

import pyarrow.compute as pc
from rich.table import Table

from nbrl.agent.trajectory import Trajectory
from nbrl.flows.display.tables import table
from nbrl.flows.display.wanted import ListedTrajectory, Wanted
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import ConfigError, did_you_mean
from nbrl.tasks.layout.runs import EVALUATIONS, RUNS, EvaluationLayout, RunLayout, run_names, stage_of
from nbrl.tasks.layout.stages import is_trajectories, rewards_of
from nbrl.tasks.runs.trajectories import read_trajectories, trajectories_of

COLUMNS = ("trajectory", "where", "reward", "success", "steps", "status", "answer", "question")
READ = ["id", "group", "status", "answer", "question", "ability", "environment"]


def files(storage: Storage, run: str) -> list[str]:
    """Return all keys of a run or evaluation that has trajectories. Raises ConfigError if there is none."""
    keys = storage.list(RunLayout(run).folder) + storage.list(EvaluationLayout(run).folder)
    if not any(map(is_trajectories, keys)):
        names = run_names(key for place in (RUNS, EVALUATIONS) for key in storage.list(place))
        if run in names:
            raise ConfigError(f"{run!r} in {storage.settings.root} has no finished trajectories yet")
        hint = did_you_mean(run, names)
        raise ConfigError(f"there are no trajectories of a run {run!r} in {storage.settings.root}; {hint}")
    return keys


def find(
    storage: Storage, run: str, trajectory: str, wanted: "Wanted | None" = None
) -> list[tuple[str, Trajectory, dict[str, Any] | None]]:
    """Return all trajectories with this id in the wanted places (evaluations repeat questions), with file and rewards."""
    matches = []
    keys = files(storage, run)
    for key in reversed(places(run, keys, wanted or Wanted())):
        for match in trajectories_of(storage, key, read_trajectories(storage, key, trajectory)):
            matches.append((key, match, _rewards(storage, rewards_of(key, keys)).get(trajectory)))
    if not matches:
        raise ConfigError(f"run {run!r} has no trajectory {trajectory!r}; `nbrl show {run}{storage.settings.option}` lists them")
    return matches


def _rewards(storage: Storage, key: str | None) -> dict[str, dict[str, Any]]:
    """Return the rows of a table of rewards, by trajectory."""
    return {row["trajectory"]: row for row in storage.read_table(key).to_pylist()} if key is not None else {}


def listing(storage: Storage, run: str, limit: int, width: int = 80, wanted: Wanted | None = None) -> Table:
    """Return the newest trajectories of a run, one per row of `width` or more characters. Raises ConfigError."""
    chosen = choose(storage, run, limit, wanted or Wanted())
    rows = [
        (
            each.id,
            each.where,
            "" if each.reward is None else f"{each.reward:.3f}",
            "" if each.success is None else f"{each.success:g}",
            str(each.steps),
            each.status,
            line(str(each.answer)),
            line(each.question),
        )
        for each in chosen
    ]
    return table(COLUMNS, rows, run, width)


def choose(storage: Storage, run: str, limit: int, wanted: Wanted) -> list[ListedTrajectory]:
    """Return the wanted ones: at most `limit`, the newest first, or by reward. Raises ConfigError where none is."""
    keys = files(storage, run)
    read, chosen = list[ListedTrajectory](), list[ListedTrajectory]()
    most = wanted.best or wanted.worst
    for key in places(run, keys, wanted):
        of_it = list(_found(storage, key, keys))
        read += of_it
        chosen += filter(wanted.fits, of_it)
        if most is None and len(chosen) >= limit:
            break
    if read and not chosen:
        raise ConfigError(_none(run, read, wanted))
    if most is None:
        return chosen[:limit]
    scored = [each for each in chosen if each.reward is not None]
    return sorted(scored, key=lambda each: each.reward or 0.0, reverse=wanted.best is not None)[:most]


def places(run: str, keys: Collection[str], wanted: Wanted) -> list[str]:
    """Return the wanted tables of trajectories, the newest first. Raises ConfigError where none is."""
    tables = sorted(filter(is_trajectories, keys), key=_age, reverse=True)
    chosen = [key for key in tables if wanted.fits_place(key)]
    if not chosen and wanted.iteration is not None:
        known = [stage[1] for key in tables if (stage := stage_of(key)) and not stage[0]]
        words = f"it has those of {known[-1]} to {known[0]}" if known else "it has no iterations"
        raise ConfigError(f"{run!r} has no trajectories of iteration {wanted.iteration}; {words}")
    if not chosen and wanted.updates is not None:
        known = [stage[1] for key in tables if (stage := stage_of(key)) and stage[0]]
        words = f"it has those after {', '.join(map(str, reversed(known)))}" if known else "it has none"
        raise ConfigError(f"{run!r} has no evaluation after {wanted.updates} updates; {words}")
    if not chosen:
        raise ConfigError(f"run {run!r} has no finished held-out evaluation yet; leave out --held-out")
    return chosen


def _age(key: str) -> tuple[int, bool, str]:
    """Return a key that sorts by time: the evaluation after an update follows the iteration that made it."""
    held_out, number = stage_of(key) or (True, 0)
    return number, held_out, key


def _found(storage: Storage, key: str, keys: Collection[str]) -> Iterator[ListedTrajectory]:
    rows, scored = read_trajectories(storage, key), rewards_of(key, keys)
    steps = pc.list_value_length(rows["steps"]).to_pylist()
    earned = {}
    if scored is not None:
        rewards = storage.read_table(scored).select(["trajectory", "total", "success"])
        earned = {row["trajectory"]: row for row in rewards.to_pylist()}
    for row, count in zip(rows.select(READ).to_pylist(), steps, strict=True):
        reward = earned.get(row["id"], {"total": None, "success": None})
        facts = {**row, "steps": count or 0, "reward": reward["total"], "success": reward["success"]}
        yield ListedTrajectory(key=key, **facts)


def _none(run: str, read: Collection[ListedTrajectory], wanted: Wanted) -> str:
    """Return why none of the trajectories that were read is wanted."""
    for name in ("status", "ability", "environment"):
        known = {getattr(each, name) for each in read}
        if (value := getattr(wanted, name)) and value not in known:
            return f"no trajectory of {run!r} has {name} {value!r}; {did_you_mean(value, known)}"
    return f"no trajectory of {run!r} is all of what was asked for; leave out one of the filters"


def line(text: str) -> str:
    return " ".join(text.split())
