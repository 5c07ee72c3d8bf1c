"""The newest metrics of runs as Prometheus reads them."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from nbrl.flows.pages.serving import HEADERS
from nbrl.infra.errors import InfraError
from nbrl.infra.process.own_pages import Application, for_own_pages
from nbrl.infra.storage import Storage
from nbrl.tasks.comparison.overview import FAULTS
from nbrl.tasks.errors import RunError
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


def metrics_app(storage: Storage, run: str) -> Application:
    """Return an application that has the metrics of one run at /metrics, for this machine alone."""
    return for_own_pages(Starlette(routes=[metrics_route(storage, lambda: [run])]))


def metrics_route(storage: Storage, names: Callable[[], Iterable[str]]) -> Route:
    """Return the route of the metrics of the runs with these names. A fault of the storage is 503, in a sentence."""

    def metrics(request: Request) -> Response:
        try:
            return Response(exposition(storage, names()), media_type=TYPE, headers=HEADERS)
        except (InfraError, RunError) as error:
            return Response(str(error), 503, HEADERS, media_type="text/plain")

    return Route("/metrics", metrics)


def exposition(storage: Storage, names: Iterable[str]) -> str:
    """Return the metrics of the runs with these names; one that is not there or cannot be read is left out."""
    samples: dict[str, list[_Sample]] = {family: [] for family in HELP}
    for name in names:
        with suppress(*FAULTS):
            for sample in _samples(storage, name):
                samples[sample.family].append(sample)
    lines = []
    for family, found in samples.items():
        lines += [f"# HELP {family} {HELP[family]}", f"# TYPE {family} gauge"]
        for sample in found:
            labels = ",".join(f'{name}="{value.translate(ESCAPED)}"' for name, value in sample.labels.items())
            lines.append(f"{family}{{{labels}}} {float(sample.value)!r}")
    return "".join(f"{line}\n" for line in lines)


def _samples(storage: Storage, name: str) -> Iterator[_Sample]:
    run = find_run(storage, name)
    if run is None or (record := newest_record(storage, run)) is None:
        return
    labels = {"run": name}
    yield _Sample("nbrl_iterations", labels, record.iteration + 1)
    yield _Sample("nbrl_iteration_finished_seconds", labels, record.finished)
    for metric, value in record.metrics.items():
        yield _Sample("nbrl_metric", {**labels, "name": metric}, value)
