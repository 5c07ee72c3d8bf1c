"""The newest metrics of all runs as Prometheus reads them."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from nbrl.infra.storage import Storage
from nbrl.tasks.comparison.overview import FAULTS, RunRow
from nbrl.tasks.layout.runs import RUNS
from nbrl.tasks.runs.history import newest_record
from nbrl.tasks.runs.run import find_run

TYPE = "text/plain; version=0.0.4; charset=utf-8"
ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class _Sample(NamedTuple):
    family: str
    labels: Mapping[str, str]
    value: float


HELP = {
    "nbrl_iterations": "finished iterations of a run",
    "nbrl_iteration_finished_seconds": "when the newest iteration of a run finished, in seconds since 1970",
    "nbrl_metric": "metrics of the newest iteration of a run, by their names in its record",
}


def exposition(storage: Storage, rows: Iterable[RunRow]) -> str:
    """Return the metrics of the runs among `rows`; one that cannot be read is left out."""
    samples: dict[str, list[_Sample]] = {family: [] for family in HELP}
    for row in rows:
        with suppress(*FAULTS):
            for sample in _samples(storage, row):
                samples[sample.family].append(sample)
    lines = []
    for family, found in samples.items():
        lines += [f"# HELP {family} {HELP[family]}", f"# TYPE {family} gauge"]
        for sample in found:
            labels = ",".join(f'{name}="{value.translate(ESCAPED)}"' for name, value in sample.labels.items())
            lines.append(f"{family}{{{labels}}} {float(sample.value)!r}")
    return "".join(f"{line}\n" for line in lines)


def _samples(storage: Storage, row: RunRow) -> Iterator[_Sample]:
    run = find_run(storage, row.name) if row.kind == RUNS else None
    if run is None or (record := newest_record(storage, run)) is None:
        return
    labels = {"run": row.name}
    yield _Sample("nbrl_iterations", labels, record.iteration + 1)
    yield _Sample("nbrl_iteration_finished_seconds", labels, record.finished)
    for name, value in record.metrics.items():
        yield _Sample("nbrl_metric", {**labels, "name": name}, value)
