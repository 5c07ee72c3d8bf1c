"""One local Prefect server per home, shared by all its runs and pages: SQLite, no analytics, ended with its last user."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from nbrl.infra.errors import InfraError, ServerError
from nbrl.infra.home import Home
from nbrl.infra.process.child import Child, free_port
from nbrl.infra.process.health import started
from nbrl.infra.process.probe import answers
from nbrl.infra.process.shared import Budget, Shared
from nbrl.infra.setup import databases

LOG = "prefect.log"
START_TIMEOUT_S = 180.0
RESTARTS, WINDOW_S, LOOK_S = 5, 600.0, 1.0
STOP_GRACE_S = 1.0
REACH_S = 10.0

# The server's own settings. Slots of deployments are kept in files, since a server ends with its last user: a slot whose flow
# run was killed is free again when its lease has run out.
SERVER = {
    "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": "http://127.0.0.1",  # no page of another site: its own pages need no permission
    "PREFECT_SERVER_CSRF_PROTECTION_ENABLED": "true",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
    "PREFECT_SERVER_UI_ENABLED": "true",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    "PREFECT_SERVER_SERVICES_PAUSE_EXPIRATIONS_ENABLED": "false",
    "PREFECT_SERVER_EVENTS_RETENTION_PERIOD": "PT6H",  # half of the database's growth; automations act at once
}

# Settings of every process that runs flows, here or below a worker. Prefect reads them when it is imported. The lines of a flow
# go to the server alone, for the process prints them itself. The command reports a failure once; its state keeps the reason.
CLIENT = {
    "PREFECT_LOGGING_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_INTERNAL_LEVEL": "CRITICAL",  # a short flow ends before all its events are sent
    "PREFECT_LOGGING_LOGGERS_PREFECT_FLOW_RUNS_LEVEL": "INFO",
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_TO_API_ENABLED": "true",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    "PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED": "false",
    "PREFECT_CLOUD_ENABLE_ORCHESTRATION_TELEMETRY": "false",
    "PREFECT_TELEMETRY_ENABLE_RESOURCE_METRICS": "false",
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",  # seconds
    "PREFECT_CLIENT_MAX_RETRIES": "6",  # after 2, 4, 8 … seconds: a server that is started again is waited for
    "DO_NOT_TRACK": "1",
}


class PrefectServer:
    """A share in the home's server; `owned` if this process started it."""

    def __init__(self, share: Shared, home: Home) -> None:
        self._share, self._home = share, home
        self.url = share.url
        self.owned = share.owned

    def stop(self) -> None:
        """Release the share; if it was the last, end the server and wait for it."""
        self._share.leave()

    @contextmanager
    def kept_up(self, say: Callable[[str], None]) -> Iterator[None]:
        """Start the server again where it was whenever it ends, and `say` so; until then clients repeat their requests."""
        over = threading.Event()
        watching = threading.Thread(target=self._watch, args=(over, say), daemon=True)
        watching.start()
        try:
            yield
        finally:
            over.set()
            watching.join()

    def _watch(self, over: threading.Event, say: Callable[[str], None]) -> None:
        budget, port = Budget(RESTARTS, WINDOW_S), int(self.url.rpartition(":")[2])
        while not over.wait(LOOK_S):
            if self._share.running:
                continue
            began = time.monotonic()
            if not budget.spend():
                say(f"the Prefect server ended, and no more than {budget} are made; its log is {self._home.logs / LOG}")
                return
            try:
                self._share.renew(lambda pipe: _start(self._home, pipe, port), _healthy)
            except InfraError as error:
                say(str(error))
                continue
            say(f"the Prefect server ended; started again in {time.monotonic() - began:.0f} s, nothing was lost")


def ensure(home: Home) -> PrefectServer:
    """Join the home's healthy server, or start one and wait until it answers."""
    return PrefectServer(Shared.join(home, "prefect", lambda pipe: _start(home, pipe, free_port()), _healthy), home)


def environment(home: Home, url: str) -> dict[str, str]:
    """Return the variables that `os.environ` needs before `import prefect`, here and in every worker that runs flows or tasks."""
    return {
        "PREFECT_HOME": str(home.prefect),
        "PREFECT_API_URL": f"{url}/api",
        "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",  # never a second server behind our back
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    } | CLIENT


def check_reachable(url: str) -> None:
    """Raises ServerError for an address (…/api) at which no Prefect server answers."""
    if not answers(f"{url.rstrip('/')}/health", REACH_S):
        raise ServerError(
            f"no Prefect server answers at PREFECT_API_URL {url}: start one there (`prefect server start`), or unset the "
            "variable to use this home's own"
        )


def _start(home: Home, pipe: int, port: int) -> tuple[Child, str]:
    databases.begin("prefect", home.prefect / "prefect.db")
    url = f"http://127.0.0.1:{port}"
    log = home.logs / LOG
    variables = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE" and not name.startswith("PREFECT_")
    }
    variables |= environment(home, url) | SERVER
    # As `prefect server start` does in the end, without the seconds its command line takes to get there.
    line = [sys.executable, "-m", "uvicorn", "--factory", "nbrl.infra.prefect_app:create", "--host", "127.0.0.1"]
    line += ["--port", str(port), "--log-level", "warning", "--no-access-log", "--timeout-keep-alive", "5"]

    def start() -> Child:
        return Child.start(line, env=variables, log=log, name="Prefect", grace_s=STOP_GRACE_S, pipe=pipe, cwd=Path("/"))

    return started(start(), start, lambda _: _healthy(url), START_TIMEOUT_S, "the Prefect server"), url


def _healthy(url: str) -> bool:
    return answers(f"{url}/api/health", 15.0)
