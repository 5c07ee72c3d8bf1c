"""One local Prefect server per home, shared by all its runs and pages: SQLite, no analytics, ended with its last user."""

import os
import sys
from pathlib import Path

from nbrl.infra.errors import ServerError
from nbrl.infra.home import Home
from nbrl.infra.process.child import Child, free_port
from nbrl.infra.process.health import answers, wait_until_healthy
from nbrl.infra.process.shared import Shared

START_TIMEOUT_S = 180.0
STOP_GRACE_S = 1.0

# The server's own settings. What is off looks every few seconds after pools, automations and leases a home lacks.
SERVER = {
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
    "PREFECT_SERVER_UI_ENABLED": "true",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    "PREFECT_SERVER_SERVICES_FOREMAN_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_REPOSSESSOR_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_PAUSE_EXPIRATIONS_ENABLED": "false",
}


class PrefectServer:
    """A share in the home's server; `owned` if this process started it."""

    def __init__(self, share: Shared) -> None:
        self._share = share
        self.url = share.url
        self.owned = share.owned

    def stop(self) -> None:
        """Release the share; if nobody else has one, end the server and wait for it."""
        self._share.leave()


def ensure(home: Home) -> PrefectServer:
    """Join the home's healthy server, or start one and wait until it answers."""

    def start(pipe: int) -> tuple[Child, str]:
        return _start(home, pipe)

    return PrefectServer(Shared.join(home, "prefect", start, _healthy))


def environment(home: Home, url: str) -> dict[str, str]:
    """The variables that `os.environ` needs before `import prefect`, here and in every worker that runs flows or tasks."""
    return {
        "PREFECT_HOME": str(home.prefect),
        "PREFECT_API_URL": f"{url}/api",
        "PREFECT_LOCAL_STORAGE_PATH": str(home.prefect / "results"),
        "PREFECT_RESULTS_DEFAULT_SERIALIZER": "json",
        "PREFECT_LOGGING_LEVEL": "CRITICAL",  # what fails is told once, by the command; its state keeps the reason
        "PREFECT_LOGGING_INTERNAL_LEVEL": "CRITICAL",  # a short flow ends before all its events are sent
        "PREFECT_LOGGING_TO_API_ENABLED": "false",
        "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",  # never a second server behind our back
        "PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED": "false",
        "PREFECT_CLOUD_ENABLE_ORCHESTRATION_TELEMETRY": "false",
        "PREFECT_TELEMETRY_ENABLE_RESOURCE_METRICS": "false",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
    }


def _start(home: Home, pipe: int) -> tuple[Child, str]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    log = home.logs / "prefect.log"
    variables = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE" and not name.startswith("PREFECT_")
    }
    variables |= environment(home, url) | SERVER
    # What `prefect server start` runs in the end, without the seconds its command line takes to get there.
    line = [sys.executable, "-m", "uvicorn", "--factory", "prefect.server.api.server:create_app", "--host", "127.0.0.1"]
    line += ["--port", str(port), "--log-level", "warning", "--no-access-log", "--timeout-keep-alive", "5"]
    child = Child.start(line, env=variables, log=log, name="Prefect", grace_s=STOP_GRACE_S, pipe=pipe, cwd=Path("/"))
    if not wait_until_healthy(child, lambda: _healthy(url), START_TIMEOUT_S):
        raise ServerError(
            f"the Prefect server did not start within {START_TIMEOUT_S:g} s: {' '.join(child.log_tail(1))} (log: {log})"
        )
    return child, url


def _healthy(url: str) -> bool:
    return answers(f"{url}/api/health", 15.0)
