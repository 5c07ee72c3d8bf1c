"""The pages of trajectories as a small web application over one storage. It only reads."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache, lru_cache
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from nbrl.flows.pages import copies, render
from nbrl.flows.pages.curves import FEW, MANY, LearningCurve, curve_of, success_of
from nbrl.flows.pages.lists import ChosenList, of_page, page_in, place_in
from nbrl.flows.pages.metrics import metrics_route
from nbrl.flows.pages.reading import RunReading, ShownStage, TrajectoryRow
from nbrl.flows.pages.serving import HEADERS
from nbrl.flows.pages.tokens import Decode, decoder
from nbrl.infra.errors import InfraError
from nbrl.infra.process.own_pages import LOCAL, Application, for_own_pages
from nbrl.infra.storage import Storage
from nbrl.tasks.comparison.overview import FAULTS, RunRow, overview, row_of
from nbrl.tasks.errors import ConfigError, RunError
from nbrl.tasks.layout.runs import RUNS
from nbrl.tasks.layout.stages import rewards_of
from nbrl.tasks.runs.kept import fitting
from nbrl.tasks.runs.opening import stored_config
from nbrl.tasks.runs.run import Run, find_run

KEPT_LISTS = 8  # in memory, so that the next trajectory of a list comes at once


@dataclass(frozen=True)
class _Listed:
    """A list of trajectories, named by its tables and their rewards, which never change."""

    names: tuple[str | None, ...]
    run: RunReading = field(compare=False)
    stage: ShownStage = field(compare=False)


def app(storage: Storage, hosts: tuple[str, ...] = LOCAL) -> Application:
    """Return the application, which answers to these names and addresses."""

    @cache
    def decode(kind: str, name: str) -> Decode:
        return decoder(model_of(storage, kind, name))

    @lru_cache(KEPT_LISTS)
    def kept(listed: _Listed) -> list[TrajectoryRow]:
        return listed.run.rows(listed.stage)

    def rows_of(run: RunReading, stage: ShownStage) -> list[TrajectoryRow]:
        names = (*stage.tables, *(rewards_of(table, run.keys) for table in stage.tables))
        return kept(_Listed(names, run, stage))

    def reading(request: Request) -> RunReading:
        return RunReading(storage, request.path_params["kind"], request.path_params["name"])

    def first(request: Request) -> str:
        rows = overview(storage)
        page = page_in(request.query_params)
        curves = {row.name: _curve(storage, row, FEW) for row in of_page(rows, page) if row.kind == RUNS}
        return render.overview_page(rows, curves, page, storage.settings.root)

    def run(request: Request) -> str:
        run, page = reading(request), page_in(request.query_params)
        stages = run.stages()
        row = row_of(storage, run.kind, run.name)
        shown = [int(stage.slug.partition("-")[2]) for stage in of_page(stages, page) if stage.slug.startswith("iter")]
        scores = success_of(storage, known, shown) if (known := _run(storage, row)) is not None else {}
        return render.run_page(row, stages, page, _curve(storage, row, MANY), scores)

    def stage(request: Request) -> str:
        run = reading(request)
        stage, stages = run.stage(request.path_params["stage"]), run.stages()
        return render.stage_page(run, stage, stages, rows_of(run, stage), ChosenList.of(request.query_params), run.runs_now)

    def trajectory(request: Request) -> str:
        run = reading(request)
        found = run.trajectory(run.stage(request.path_params["stage"]), request.path_params["identity"])
        rows = rows_of(run, found.stage)
        chosen = ChosenList.of(request.query_params)
        beside = render.Beside(
            chosen,
            place_in(chosen.rows(rows), found.trajectory.id),
            [row for row in rows if row.group == found.trajectory.group],
            copies.in_the_run(run, found),
            copies.in_other_runs(storage, run, found) if "elsewhere" in request.query_params else None,
            run.runs_now and found.rewards is None,
        )
        return render.trajectory_page(run.kind, run.name, found, decode(run.kind, run.name), beside)

    def page_of(request: Request) -> Response:
        """Return the run's page, or lead to the stage that was chosen in a list."""
        chosen = request.query_params.get("stage")
        if chosen is None:
            return _shown(run)(request)
        kind, name = request.path_params["kind"], request.path_params["name"]
        address = "/".join(quote(part, safe="") for part in (kind, name, chosen))
        return RedirectResponse(f"/{address}{ChosenList.of(request.query_params).query(page=1)}", 303, HEADERS)

    routes = [
        Route("/", _shown(first)),
        metrics_route(storage, lambda: [row.name for row in overview(storage) if row.kind == RUNS]),
        Route("/pages.js", lambda _: Response(render.SCRIPT, media_type="text/javascript", headers=HEADERS)),
        Route("/{kind}/{name}", page_of),
        Route("/{kind}/{name}/{stage}", _shown(stage)),
        Route("/{kind}/{name}/{stage}/{identity:path}", _shown(trajectory)),
    ]
    return for_own_pages(Starlette(routes=routes), hosts)


def _shown(page: Callable[[Request], str]) -> Callable[[Request], Response]:
    """Return the page; what is not there is 404, and a fault of the storage 503, both in a sentence."""

    def shown(request: Request) -> Response:
        try:
            with fitting(request.path_params.get("name", "a run")):
                return HTMLResponse(page(request), headers=HEADERS)
        except ConfigError as error:
            return HTMLResponse(render.failure_page("This is not there", str(error)), 404, HEADERS)
        except (InfraError, RunError) as error:
            return HTMLResponse(render.failure_page("This cannot be shown", str(error)), 503, HEADERS)

    return shown


def _run(storage: Storage, row: RunRow) -> Run | None:
    """Return the run of a row; None for an evaluation, and for one that cannot be read."""
    with suppress(*FAULTS):
        return find_run(storage, row.name) if row.kind == RUNS else None
    return None


def _curve(storage: Storage, row: RunRow, most: int) -> LearningCurve:
    """Return the curve of a row's run; an empty one where it cannot be read."""
    with suppress(*FAULTS):
        if (run := _run(storage, row)) is not None:
            return curve_of(storage, run, row.iterations or 0, most)
    return LearningCurve()


def model_of(storage: Storage, kind: str, name: str) -> str:
    """Return the model folder of a run, for its tokenizer; empty if that is not known."""
    try:
        run = find_run(storage, name, "runs" if kind == "runs" else "evaluations")
        return stored_config(storage, run).policy.path if run else ""
    except (InfraError, RunError):
        return ""


def page(storage: Storage, name: str, tables: Sequence[str], identity: str) -> str:
    """Return the trajectories with an id of these tables of a run or an evaluation as one page that needs no server.

    Raises ConfigError if one is not there.
    """
    run = RunReading(storage, tables[0].partition("/")[0], name)
    stages = {table: stage for stage in run.stages() for table in stage.tables}
    found = [run.trajectory(ShownStage(stages[table].slug, [table]), identity) for table in tables]
    return render.file_page(name, found, decoder(model_of(storage, run.kind, name)))
