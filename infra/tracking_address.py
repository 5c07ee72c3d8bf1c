"""The address of MLflow, its checks, and MLflow's system metrics of this machine."""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nbrl.infra.errors import ServerError
from nbrl.infra.home import Home

if TYPE_CHECKING:
    from nbrl.infra.tracking import Tracking


REACH_S = 10.0
SQLITE = "sqlite:///"
DATABASE = "mlflow.db"  # the home's own
SERVERS = ("http://", "https://")
OURS = "127.0.0.1,localhost"  # reached without a proxy
INTERVAL_S = 10.0


def check_reachable(uri: str) -> None:
    """Raises ServerError for a tracking server that does not answer. Databases are not opened."""
    if not uri.startswith(SERVERS):
        return
    import requests  # as MLflow's own client: with its rules for proxies and certificates

    verify = os.environ.get("MLFLOW_TRACKING_INSECURE_TLS", "").lower() not in ("true", "1")
    try:  # any answer will do: permissions are found out later
        requests.get(f"{uri.rstrip('/')}/health", timeout=REACH_S, proxies={"no_proxy": OURS}, verify=verify)
    except (requests.RequestException, ValueError) as error:
        raise ServerError(
            f"no MLflow server answers at tracking.uri {uri} ({type(error).__name__}): start one there, or leave "
            "tracking.uri out to use a database in the home folder"
        ) from error


def check_uri(uri: str) -> None:
    """Raises ServerError for what is no tracking URI."""
    if uri.startswith(SQLITE):
        folder = Path(uri.removeprefix(SQLITE)).absolute().parent
        if not folder.is_dir():
            raise ServerError(f"tracking.uri {uri}: there is no folder {folder}; make it, or name another database")
    elif not uri.startswith(SERVERS) and not re.match(r"(postgresql|mysql|mssql)(\+\w+)?://.|databricks(://.+)?$", uri):
        raise ServerError(
            f"tracking.uri {uri!r} is no tracking server or database: give http://host:port or sqlite:///path/mlflow.db, or "
            "leave it out"
        )


def missing_database(uri: str | None, home: Home) -> Path | None:
    """Return the SQLite file that opening MLflow would make, for callers that only read; None if it is there, or no file."""
    file = home.root / "mlflow" / DATABASE
    if uri is not None:
        if not uri.startswith(SQLITE):
            return None
        file = Path(uri.removeprefix(SQLITE).partition("?")[0]).absolute()
    return None if file.is_file() else file


def database(home: Home) -> str:
    return f"{SQLITE}{home.mlflow / DATABASE}"


class Machine:
    """CPU, memory, disk, network and NVIDIA GPUs, sampled by a thread of MLflow's. It ends by itself when MLflow is away."""

    def __init__(self, tracking: "Tracking", interval_s: float = INTERVAL_S) -> None:
        self._tracking, self._interval_s = tracking, interval_s
        self._monitor: Any = None

    def watch(self) -> None:
        """Begin, after the last step of an earlier process of the run; does nothing if it has begun."""
        if self._monitor is not None:
            return
        from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

        self._monitor = SystemMetricsMonitor(
            self._tracking.run_id, sampling_interval=self._interval_s, resume_logging=True, tracking_uri=self._tracking.uri
        )
        self._monitor.start()

    def leave(self) -> None:
        """End, and log what was sampled."""
        if self._monitor is not None:
            self._monitor.finish()
            self._monitor = None
