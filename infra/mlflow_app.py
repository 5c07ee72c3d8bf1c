"""The application of MLflow's pages on this machine: MLflow's own, for its own pages alone."""

from nbrl.infra.process.garbage import without_collection
from nbrl.infra.process.own_pages import Application, for_own_pages


def create() -> Application:
    with without_collection():
        from mlflow.server.fastapi_app import app

        return for_own_pages(app)
