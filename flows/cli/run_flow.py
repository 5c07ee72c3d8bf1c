"""Runs a flow against the Prefect server of a home."""

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from nbrl.flows.cli.guard import cancel_on_term
from nbrl.flows.display.terminal import say

if TYPE_CHECKING:
    from nbrl.infra.ray_cluster import RaySettings

T = TypeVar("T")
DELIVERY_S = 5.0


def run_flow(folder: str, work: Callable[[], Coroutine[Any, Any, T]], ray: "RaySettings | None" = None) -> T:
    """Run a flow against this home's Prefect server. Ctrl-C and SIGTERM end everything that it started.

    The flow's cluster, that of `ray`, is launched beside that server, because each takes seconds to start.
    """
    from nbrl.infra import ray_cluster, variables
    from nbrl.infra.home import Home as LocalHome

    if ray is not None:
        variables.set_here()
        ray_cluster.launch(ray, LocalHome(folder).logs)
    try:
        with in_environment(folder):
            return _ended_alike(work)
    finally:
        ray_cluster.stop()


@contextmanager
def in_environment(folder: str, given: str = "") -> Iterator[str]:
    """Yield the address of this home's Prefect server, or of the `given` one; Ray, MLflow and Prefect may be imported inside.

    Raises ServerError if none answers.
    """
    from nbrl.infra import prefect_server, variables
    from nbrl.infra.home import Home as LocalHome

    if given:
        prefect_server.check_reachable(given)
        os.environ.update(prefect_server.CLIENT)
        variables.set_here()
        yield given
        return
    home = LocalHome(folder)
    server = prefect_server.ensure(home)
    try:
        os.environ.update(prefect_server.environment(home, server.url))
        variables.set_here()
        with server.kept_up(say):
            yield f"{server.url}/api"
    finally:
        server.stop()


def _ended_alike(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run `work`. While a flow runs, Prefect turns SIGTERM into an exception of its own; handle it like Ctrl-C."""
    from prefect.exceptions import TerminationSignal  # reads the environment

    try:
        return asyncio.run(cancel_on_term(work))
    except TerminationSignal:
        raise KeyboardInterrupt from None
    finally:
        _deliver()


def _deliver() -> None:
    """Send the last lines and events while the server is there; at the exit Prefect would look for it for minutes."""
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    for worker in (APILogWorker, EventsWorker):
        worker.drain_all(timeout=DELIVERY_S)
