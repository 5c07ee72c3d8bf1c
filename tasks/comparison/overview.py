"""All runs and evaluations of a storage, one row each: how far they came, how well they score, and what happens with them now."""

import socket
from collections.abc import Callable, Collection
from typing import Any, Literal, TypeVar

from nbrl.infra.closed import ClosedModel
from nbrl.infra.errors import DamagedError, MissingError
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import OtherFormatError, RunError
from nbrl.tasks.evaluation import summary as evaluation_summary
from nbrl.tasks.layout.runs import EVALUATIONS, NAME, RUNS, EvaluationLayout, RunLayout, layout_of, name_of
from nbrl.tasks.runs.ending import SILENT
from nbrl.tasks.runs.epochs import Epoch, first_and_newest
from nbrl.tasks.runs.history import finished_iterations, newest_record
from nbrl.tasks.runs.lease import holder, last_ending
from nbrl.tasks.runs.results import scores_of
from nbrl.tasks.runs.run import Kind, Run, known_run

# What the files of one run can cause.
FAULTS = (DamagedError, MissingError, RunError, ValueError, LookupError, TypeError, AttributeError)
State = Literal["running", "finished", "ended early", "learned nothing", "failed", "stopped", "died", "damaged", "not readable"]
ENDED: dict[str, State] = {"FINISHED": "stopped", "FAILED": "failed", "KILLED": "stopped"}  # before all its work was done
T = TypeVar("T")


class RunRow(ClosedModel):
    """A run or an evaluation; unknown values are None or empty.

    `host` is where it runs now, `reason` why it failed, was stopped or cannot be read, or what is damaged. `first`, `last` and
    `best` are its held-out scores, `rollouts` the success of the newest iteration's own. `bytes` is what it takes of a local
    storage, `began` in seconds since 1970.
    """

    name: str
    kind: Kind
    recipe: str = ""
    state: State
    host: str = ""
    reason: str = ""
    iterations: int | None = None
    planned: int | None = None
    first: float | None = None
    last: float | None = None
    best: float | None = None
    rollouts: float | None = None
    bytes: int | None = None
    began: float | None = None
    logs: str = ""

    def age(self, now: float) -> float | None:
        """Return the seconds since it began."""
        return None if self.began is None else max(0.0, now - self.began)


def overview(storage: Storage) -> list[RunRow]:
    """Return all of them, those that began last first. What is damaged has a row too."""
    rows = [_row(storage, kind, name, keys) for kind in (RUNS, EVALUATIONS) for name, keys in _by_name(storage, kind)]
    return sorted(rows, key=lambda row: (-(row.began or 0.0), row.kind, row.name))


def row_of(storage: Storage, kind: Kind, name: str) -> RunRow:
    """Return the row of one run or evaluation."""
    folder = layout_of(kind, name).folder
    sizes = storage.sizes(folder)
    return _row(storage, kind, name, dict(sizes) if sizes is not None else dict.fromkeys(storage.list(folder)))


def _by_name(storage: Storage, kind: Kind) -> list[tuple[str, dict[str, int | None]]]:
    """Return each with the keys of its files and their sizes, as far as they are known."""
    sizes = storage.sizes(kind)
    found: dict[str, dict[str, int | None]] = {}
    for key, size in sizes.items() if sizes is not None else [(key, None) for key in storage.list(kind)]:
        if key.count("/") > 1 and NAME.fullmatch(name_of(key)):  # no run can have another name
            found.setdefault(name_of(key), {})[key] = size
    return sorted(found.items())


class _Reader:
    """Reads the files of one run; what is damaged is noted and counts as unknown. `state` is that of a run with faults."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.state: State = "damaged"

    def __call__(self, read: Callable[[], T], otherwise: T) -> T:
        try:
            return read()
        except FAULTS as error:
            if isinstance(error, OtherFormatError):
                self.state = "not readable"
            self.faults.append(" ".join(str(error).split()))
            return otherwise


def _row(storage: Storage, kind: Kind, name: str, keys: dict[str, int | None]) -> RunRow:
    layout, read = layout_of(kind, name), _Reader()
    starts = read(lambda: first_and_newest(storage, layout), None)
    run = read(lambda: known_run(storage, name, kind), None) if layout.identity in keys else None
    facts: dict[str, Any] = {"name": name, "kind": kind, "recipe": run.recipe if run else ""}
    facts["bytes"] = None if None in keys.values() else sum(size or 0 for size in keys.values())
    facts["began"] = starts[0].started if starts else None
    facts["logs"] = _logs(storage, layout, keys, starts[1] if starts else None)
    done = finished_iterations(keys, layout)
    if isinstance(layout, EvaluationLayout):
        summary = read(lambda: evaluation_summary.read(storage, name), None)
        complete: State | None = "finished" if summary else None
        if summary is not None:
            score = summary.scores[0].headline(summary.mode).value if summary.scores else None
            facts |= {"recipe": summary.recipe, "first": score, "last": score, "best": score}
            facts["began"] = facts["began"] or summary.finished
    else:
        if run is not None:
            facts |= read(lambda: _scores(storage, run), dict[str, float]())
        facts["iterations"], facts["planned"] = done, _planned(run, starts[1] if starts else None)
        complete = read(lambda: _summarised(storage, layout, keys, done), None)
    if layout.identity not in keys:
        read.faults.append(f"{storage.uri(layout.identity)} is missing")
    return RunRow(**facts, **_state(storage, layout, complete, facts, read))


def _scores(storage: Storage, run: Run) -> dict[str, float]:
    facts: dict[str, float] = {}
    if scores := scores_of(storage, run):
        facts = {"first": scores[min(scores)], "last": scores[max(scores)], "best": max(scores.values())}
    newest = newest_record(storage, run)
    return facts | ({"rollouts": newest.metrics["reward/success"]} if newest else {})


def _planned(run: Run | None, newest: Epoch | None) -> int | None:
    """Return the number of planned iterations by the settings of the newest start, else by those that the run began with."""
    settings = (newest.settings if newest else None) or (run.config if run else {})
    planned = settings.get("iterations")
    return planned if isinstance(planned, int) else None


def _summarised(storage: Storage, layout: RunLayout, keys: Collection[str], done: int) -> State | None:
    """Return how a run ended whose summary is of all its iterations; a run continued after its end has one of fewer."""
    if layout.summary not in keys:
        return None
    summary = storage.read_json(layout.summary)
    if summary["iterations"] != done:
        return None
    if summary["stalled"]:
        return "learned nothing" if summary["skipped_in_row"] == done else "ended early"
    return "finished"


def _state(storage: Storage, layout: RunLayout, complete: State | None, facts: dict[str, Any], read: _Reader) -> dict[str, Any]:
    """Return its state, with host or reason. A finished run that was continued in vain has the state of its newest start."""
    if (held := holder(storage, layout)) is not None:
        return {"state": "running", "host": held.epoch.host}
    if read.faults:
        return {"state": read.state, "reason": read.faults[0]}
    ending, _ = last_ending(storage, layout)
    iterations, planned = facts.get("iterations"), facts.get("planned")
    goes_on = complete == "finished" and iterations is not None and planned is not None and iterations < planned
    if complete is not None and (ending.status == "FINISHED" or not goes_on):
        return {"state": complete}
    return {"state": "died" if ending.reason == SILENT else ENDED[ending.status], "reason": ending.reason}


def _logs(storage: Storage, layout: RunLayout, keys: Collection[str], newest: Epoch | None) -> str:
    """Return the folder with the logs: beside the run, or in the home of its newest start, with another host's name."""
    beside = f"{layout.folder}/logs"
    if any(key.startswith(f"{beside}/") for key in keys):
        return storage.uri(beside)
    if newest is None:
        return ""
    home = (newest.settings or {}).get("home", "")
    if not home:
        return ""
    return f"{home}/logs" if newest.host == socket.gethostname() else f"{newest.host}:{home}/logs"
