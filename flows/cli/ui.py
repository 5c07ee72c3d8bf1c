"""Serves the MLflow and Prefect pages of a home folder."""

import signal
import threading

from rich.console import Console

from nbrl.infra import prefect_server
from nbrl.infra.home import Home
from nbrl.infra.tracking_ui import ui


def serve(folder: str, console: Console) -> None:
    """Serve until Ctrl-C or SIGTERM; end the servers that this call started and leave running ones alone."""
    home = Home(folder)
    prefect = prefect_server.ensure(home)
    try:
        mlflow = ui(home)
        try:
            console.print(f"MLflow   {mlflow.url}\nPrefect  {prefect.url}\nCtrl-C ends them.", highlight=False)
            ended = threading.Event()
            signal.signal(signal.SIGTERM, lambda *_: ended.set())
            signal.signal(signal.SIGINT, lambda *_: ended.set())
            ended.wait()
        finally:
            mlflow.stop()
    finally:
        prefect.stop()
