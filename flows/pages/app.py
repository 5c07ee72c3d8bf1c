"""The pages of trajectories as a small web application over one storage. It only reads."""

from collections.abc import Callable
from functools import cache

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from nbrl.flows.pages import render
from nbrl.flows.pages.reading import KINDS, Reading, TrajectoryRow
from nbrl.flows.pages.render import trajectory_page
from nbrl.flows.pages.tokens import Decode, decoder
from nbrl.infra.errors import InfraError
from nbrl.infra.process.own_pages import LOCAL, Application, for_own_pages
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import ConfigError, RunError
from nbrl.tasks.layout.runs import layout_of
from nbrl.tasks.runs.kept import fitting
from nbrl.tasks.runs.opening import stored_config
from nbrl.tasks.runs.run import find_run

# Beside the page's own: nothing is loaded from elsewhere, and no other page shows these in a frame.
HEADERS = {"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer"}


def app(storage: Storage, hosts: tuple[str, ...] = LOCAL) -> Application:
    """Return the application, which answers to these names and addresses."""
    reading = Reading(storage)

    @cache
    def decode(kind: str, name: str) -> Decode:
        return decoder(model_of(storage, kind, name))

    def overview(request: Request) -> str:
        return render.overview(reading.names(), storage.settings.root)

    def run(request: Request) -> str:
        kind, name = request.path_params["kind"], request.path_params["name"]
        return render.run_page(kind, name, reading.stages(kind, name), reading.picture(kind, name))

    def stage(request: Request) -> str:
        kind, name = request.path_params["kind"], request.path_params["name"]
        stage = reading.stage(kind, name, request.path_params["stage"])
        rows = reading.rows(kind, name, stage)
        chosen = {key: request.query_params.get(key, "") for key in ("status", "ability", "text", "order")}
        return render.stage_page(kind, name, stage, filtered(rows, chosen), chosen, len(rows))

    def trajectory(request: Request) -> str:
        kind, name = request.path_params["kind"], request.path_params["name"]
        found = reading.stage(kind, name, request.path_params["stage"])
        match = reading.trajectory(kind, name, found, request.path_params["identity"])
        return render.trajectory_page(kind, name, found, match, decode(kind, name))

    routes = [
        Route("/", _shown(overview)),
        Route("/{kind}/{name}", _shown(run)),
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


def filtered(rows: list[TrajectoryRow], chosen: dict[str, str]) -> list[TrajectoryRow]:
    """Return the rows that have the chosen status and ability, and the text somewhere; by reward if an order is chosen."""
    text = chosen["text"].lower()
    found = [
        row
        for row in rows
        if chosen["status"] in ("", row.status)
        and chosen["ability"] in ("", row.ability)
        and (not text or any(text in part.lower() for part in (row.id, row.question, row.answer or "")))
    ]
    if chosen["order"] in ("best", "worst"):
        found.sort(key=lambda row: row.reward or 0.0, reverse=chosen["order"] == "best")
    return found


def model_of(storage: Storage, kind: str, name: str) -> str:
    """Return the model folder of a run, for its tokenizer; empty if that is not known."""
    try:
        run = find_run(storage, name, "runs" if kind == "runs" else "evaluations")
        return stored_config(storage, run).policy.path if run else ""
    except (InfraError, RunError):
        return ""


def page(storage: Storage, name: str, table: str, identity: str) -> str:
    """Return the page of a trajectory, which is in the table with this key. Raises ConfigError if it is not there."""
    reading = Reading(storage)
    kind = next(kind for kind in KINDS if table.startswith(f"{layout_of(kind, name).folder}/"))
    stage = next(stage for stage in reading.stages(kind, name) if table in stage.tables)
    shown = reading.trajectory(kind, name, stage, identity)
    return trajectory_page(kind, name, stage, shown, decoder(model_of(storage, kind, name)), alone=True)
