"""Runs a flow against the Prefect server of a home."""

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from nbrl.flows.cli.guard import cancel_on_term

T = TypeVar("T")


def run_flow(folder: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a flow against this home's Prefect server, with Ctrl-C and SIGTERM ending everything it started."""
    from nbrl.infra import prefect_server, tracking
    from nbrl.infra.home import Home as LocalHome

    home = LocalHome(folder)
    server = prefect_server.ensure(home)
    try:
        os.environ.update(prefect_server.environment(home, server.url) | tracking.ENVIRONMENT)
        for name in ("NO_PROXY", "no_proxy"):  # our own servers are not reached through a proxy
            os.environ[name] = ",".join(filter(None, [os.environ.get(name), "127.0.0.1,localhost"]))
        return _ended_alike(work)
    finally:
        server.stop()


def _ended_alike(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run `work`. While a flow runs Prefect makes an exception of its own of SIGTERM; it, too, ends as Ctrl-C does."""
    from prefect.exceptions import TerminationSignal  # reads the environment

    try:
        return asyncio.run(cancel_on_term(work))
    except TerminationSignal:
        raise KeyboardInterrupt from None
