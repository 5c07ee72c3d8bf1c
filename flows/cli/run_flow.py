"""Runs a flow against the Prefect server of a home."""

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from nbrl.flows.cli.guard import cancel_on_term
from nbrl.flows.display.terminal import say

T = TypeVar("T")


def run_flow(folder: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a flow against this home's Prefect server. Ctrl-C and SIGTERM end everything that it started."""
    from nbrl.infra import prefect_server, ray_cluster, tracking
    from nbrl.infra.home import Home as LocalHome

    home = LocalHome(folder)
    server = prefect_server.ensure(home)
    try:
        # Ray and Prefect read some of these when they are imported.
        os.environ.update(prefect_server.environment(home, server.url) | tracking.ENVIRONMENT | ray_cluster.ENVIRONMENT)
        for name in ("NO_PROXY", "no_proxy"):  # local servers are not reached through a proxy
            os.environ[name] = ",".join(filter(None, [os.environ.get(name), "127.0.0.1,localhost"]))
        with server.kept_up(say):
            return _ended_alike(work)
    finally:
        server.stop()


def _ended_alike(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run `work`. While a flow runs, Prefect turns SIGTERM into an exception of its own; handle it like Ctrl-C."""
    from prefect.exceptions import TerminationSignal  # reads the environment

    try:
        return asyncio.run(cancel_on_term(work))
    except TerminationSignal:
        raise KeyboardInterrupt from None
