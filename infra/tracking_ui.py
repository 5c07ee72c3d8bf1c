"""Serves MLflow's pages over the database of a home."""

import os
import sys

import httpx

from nbrl.infra.home import Home
from nbrl.infra.process.child import Child, free_port
from nbrl.infra.process.health import started
from nbrl.infra.process.probe import answers
from nbrl.infra.setup import databases
from nbrl.infra.tracking import ENVIRONMENT, TrackingSettings
from nbrl.infra.tracking_address import DATABASE, database

UI_TIMEOUT_S = 120.0
ASK_S = 10.0


class MlflowPages:
    """MLflow's pages at `url`, served until `stop`, or until the process that called `ui` ends."""

    def __init__(self, child: Child, url: str) -> None:
        self._child, self.url = child, url

    @property
    def runs(self) -> str:
        """Return the page to open: the runs of the default experiment, if there is one, else the first page.

        The address asks for the mode for training: MLflow opens in that for agents, whatever an experiment's tag says.
        """
        name = TrackingSettings().experiment
        address = f"{self.url}/api/2.0/mlflow/experiments/get-by-name"
        try:
            response = httpx.get(address, params={"experiment_name": name}, trust_env=False, timeout=ASK_S)
        except httpx.HTTPError:
            return self.url
        if response.status_code != httpx.codes.OK:
            return self.url
        return f"{self.url}/#/experiments/{response.json()['experiment']['experiment_id']}/runs?workflowType=machine_learning"

    @property
    def alive(self) -> bool:
        return self._child.alive

    def stop(self) -> None:
        self._child.stop()


def ui(home: Home, settings: TrackingSettings | None = None, port: int | None = None) -> MlflowPages:
    """Serve MLflow's pages over the database of the home or of the settings to this machine; returns when they answer.

    Without `port`, at any free one. Others could write files with MLflow's requests, wherever this user may.
    """
    uri = settings.uri if settings else None
    if uri is None:
        databases.begin("mlflow", home.mlflow / DATABASE)
        uri = database(home)
    port = free_port() if port is None else port
    url = f"http://127.0.0.1:{port}"
    line = [sys.executable, "-m", "mlflow", "server", "--app-name", "nbrl", "--backend-store-uri", uri, "--port", str(port)]
    line += ["--workers", "1", "--default-artifact-root", (home.mlflow / "artifacts").as_uri()]
    log = home.logs / "mlflow.log"
    environment = os.environ | ENVIRONMENT | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}  # else eight more processes

    def start() -> Child:
        return Child.start(line, env=environment, log=log, name="MLflow", cwd=home.mlflow)

    def healthy(_: Child) -> bool:
        return answers(f"{url}/health", 5.0)

    return MlflowPages(started(start(), start, healthy, UI_TIMEOUT_S, "MLflow's pages", poll_s=0.1), url)
