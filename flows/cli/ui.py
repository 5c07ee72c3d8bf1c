"""`nbrl ui`: the pages of trajectories, of MLflow and of Prefect."""

import asyncio
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from rich.console import Console

from nbrl.flows.display.terminal import plain
from nbrl.flows.pages.app import app
from nbrl.flows.pages.serving import served
from nbrl.infra import prefect_server
from nbrl.infra.errors import InfraError, ServerError
from nbrl.infra.home import Home
from nbrl.infra.process.child import free_port, port_in_use
from nbrl.infra.process.identity import check_host, is_local, names_of
from nbrl.infra.storage import Storage
from nbrl.infra.tracking import TrackingSettings
from nbrl.infra.tracking_address import SERVERS
from nbrl.infra.tracking_ui import ui
from nbrl.tasks.errors import RunError
from nbrl.tasks.layout.runs import RUNS, run_names
from nbrl.tasks.runs.epochs import first_and_newest
from nbrl.tasks.runs.recipes import trusted_config
from nbrl.tasks.runs.run import find_run


def serve(
    home: Home,
    storage: Storage,
    host: str,
    names: Sequence[str],
    port: int | None,
    uri: str | None,
    console: Console,
    others: bool = True,
) -> None:
    """Serve until Ctrl-C or SIGTERM; end the servers that this call started and leave running ones alone.

    The trajectories are at `port`, MLflow's pages at the next one; both at any free ports when it is None. `uri` is the MLflow
    that is shown, by default that of the newest run on the storage. The trajectories can be read at `host` and by the `names`;
    MLflow's and Prefect's pages, which change things, stay on this machine, and are left out without `others`. Each address is
    printed as soon as its pages answer; those of MLflow or Prefect that do not start leave the others alone.
    """
    check_host(host)
    if "*" in names:
        raise ServerError("--allowed-host takes names, as in --allowed-host machine.example.org; any name would let any site in")
    for taken in [] if port is None else [port, port + 1]:
        if port_in_use(taken):
            raise ServerError(f"port {taken} is taken: end what listens there, or choose another --port")
    only = "" if is_local(host) else "   (on this machine only)"

    def show(title: str, address: str) -> None:
        console.print(f"{title:<12}  {address}", highlight=False, soft_wrap=True)

    with ExitStack() as stack:
        ended = threading.Event()
        pages = app(storage, (*names_of(host), *(name.lower() for name in names)))
        show("trajectories", stack.enter_context(served(pages, host, port or free_port())))
        if others:
            with _warned("MLflow", console):
                show("MLflow", _mlflow(stack, home, uri or newest_uri(storage), port, only))
            with _warned("Prefect", console):
                prefect = prefect_server.ensure(home)
                stack.callback(prefect.stop)
                _keep_true(prefect_server.environment(home, prefect.url))
                show("Prefect", f"{prefect.url}{only}")
        signal.signal(signal.SIGTERM, lambda *_: ended.set())
        signal.signal(signal.SIGINT, lambda *_: ended.set())
        console.print("Ctrl-C ends them.")
        ended.wait()


def _keep_true(environment: dict[str, str]) -> None:
    """Have Prefect's pages show which flow runs ended with their process, from now on."""
    os.environ.update(environment)  # which Prefect reads when it is imported
    from nbrl.flows.upkeep import kept_true

    async def forever() -> None:
        async with kept_true():
            await asyncio.Event().wait()

    threading.Thread(target=lambda: asyncio.run(forever()), name="upkeep", daemon=True).start()


@contextmanager
def _warned(title: str, console: Console) -> Iterator[None]:
    """Print why a server does not start, in place of its address."""
    try:
        yield
    except InfraError as error:
        console.print(f"{title:<12}  is not shown: {plain(str(error))}", highlight=False, soft_wrap=True)


def _mlflow(stack: ExitStack, home: Home, uri: str | None, port: int | None, only: str) -> str:
    """Return the address of MLflow's pages: the server's at `uri`, or that of one that is started, until the stack ends."""
    if uri is not None and uri.startswith(SERVERS):
        return str(plain(uri))
    mlflow = ui(home, TrackingSettings(uri=uri), None if port is None else port + 1)
    stack.callback(mlflow.stop)
    return f"{mlflow.runs}{only}"


def newest_uri(storage: Storage) -> str | None:
    """Return `tracking.uri` of the run on the storage that was started last; None if that is the home's own, or there is no run.

    One that this user neither uses nor trusts is skipped: `--tracking-uri` names it.
    """
    newest: tuple[float, str | None] = (0.0, None)
    for name in run_names(storage.list(RUNS)):
        try:
            run = find_run(storage, name)
            starts = None if run is None else first_and_newest(storage, run.layout)
        except (RunError, InfraError):  # what cannot be read is no run to follow
            continue
        if starts is not None and starts[1].started > newest[0]:
            newest = starts[1].started, name
    if newest[1] is None:
        return None
    try:
        return trusted_config(storage, newest[1], (), trust=False, used=("tracking.uri",)).tracking.uri
    except (RunError, InfraError):
        return None
