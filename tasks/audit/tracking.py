"""Compares what MLflow has of a run with its records."""

from collections.abc import Iterator, Sequence

from nbrl.infra.tracking import Tracking
from nbrl.tasks.runs.history import Record
from nbrl.tasks.runs.run import Run
from nbrl.tasks.tracking.facts import RUN_ID


def check_tracking(tracking: Tracking, run: Run, records: Sequence[Record]) -> Iterator[str]:
    """Contradictions between MLflow and the records: a metric that is missing, stands twice at a step, or has another value."""
    if not tracking.find_run(run.name, {RUN_ID: run.run_id}):
        yield f"MLflow at {tracking.uri} has no run {run.name!r}; `nbrl track {run.name}` delivers it"
        return
    for name in sorted({name for record in records for name in record.metrics}):
        wanted = sorted((record.iteration + 1, record.metrics[name]) for record in records if name in record.metrics)
        found = sorted(tracking.history(name))
        if [step for step, _ in found] != [step for step, _ in wanted]:
            steps = f"at steps {_few(found)}, the records at {_few(wanted)}"
            yield f"MLflow has {name} {steps}; `nbrl track {run.name}` delivers what is missing"
        elif found != wanted:
            yield f"MLflow has other values of {name} than the records"


def _few(points: Sequence[tuple[int, float]]) -> str:
    steps = [str(step) for step, _ in points]
    return ", ".join(steps if len(steps) <= 6 else [*steps[:5], "…"]) or "none"
