"""Serves MLflow's pages over the books of a home."""

import os
import sys

from nbrl.infra.errors import ServerError
from nbrl.infra.home import Home
from nbrl.infra.process.child import Child, free_port
from nbrl.infra.process.health import answers, wait_until_healthy
from nbrl.infra.tracking import ENVIRONMENT, TrackingSettings, database

UI_TIMEOUT_S = 120.0


class Page:
    """MLflow's pages, served until `stop`, or until the process that called `ui` ends."""

    def __init__(self, child: Child, url: str) -> None:
        self._child = child
        self.url = url

    @property
    def alive(self) -> bool:
        return self._child.alive

    def stop(self) -> None:
        self._child.stop()


def ui(home: Home, settings: TrackingSettings | None = None) -> Page:
    """Serve MLflow's pages over the database of the home or of the settings; returns when they answer."""
    uri = (settings.uri if settings else None) or database(home)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    line = [sys.executable, "-m", "mlflow", "server", "--backend-store-uri", uri, "--host", "127.0.0.1", "--port", str(port)]
    line += ["--workers", "1", "--default-artifact-root", (home.mlflow / "artifacts").as_uri()]
    log = home.logs / "mlflow.log"
    environment = os.environ | ENVIRONMENT | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}  # else eight more processes
    child = Child.start(line, env=environment, log=log, name="MLflow", cwd=home.mlflow)
    if not wait_until_healthy(child, lambda: answers(f"{url}/health", 5.0), UI_TIMEOUT_S, 0.1):
        child.stop()
        raise ServerError(f"MLflow's pages did not come up within {UI_TIMEOUT_S:g} s: {' '.join(child.log_tail(1))} (log: {log})")
    return Page(child, url)
