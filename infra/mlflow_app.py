"""The application of MLflow's pages on this machine: MLflow's own, for its own pages alone, without its assistant."""

from pathlib import Path

from nbrl.infra.process.garbage import without_collection
from nbrl.infra.process.own_pages import Application, Message, Receive, Send, for_own_pages

ASSISTANT = "/mlflow/assistant"  # part of the paths by which pages ask a model that may run commands on this machine
# Pages on a local address open the assistant at the first visit unless this says that they did; its button goes too.
CLOSED = (
    b'<script>localStorage.setItem("mlflow.assistant.fab.autoOpenedOnFirstLoad_v1", "true")</script>'
    b'<style>[data-component-id="mlflow.assistant.fab"] {display: none !important}</style>'
)


def create() -> Application:
    with without_collection():
        import mlflow.server
        from mlflow.server.fastapi_app import app

        index = Path(mlflow.server.__file__).parent / "js" / "build" / "index.html"
        return for_own_pages(without_assistant(app, index.read_bytes()))


def without_assistant(application: Application, index: bytes) -> Application:
    """Return the application, which knows nothing of MLflow's assistant. `index` is its only page, in HTML."""
    page = index.replace(b"<head>", b"<head>" + CLOSED, 1)

    async def wrapped(scope: Message, receive: Receive, send: Send) -> None:
        async def answer(status: int, kind: bytes, body: bytes) -> None:
            await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", kind)]})
            await send({"type": "http.response.body", "body": body if scope["method"] != "HEAD" else b""})

        if scope["type"] == "http" and ASSISTANT in scope["path"]:
            await answer(404, b"application/json", b'{"detail": "there is no assistant"}')
        elif scope["type"] == "http" and scope["path"] == "/" and scope["method"] in ("GET", "HEAD"):
            await answer(200, b"text/html; charset=utf-8", page)
        else:
            await application(scope, receive, send)

    return wrapped
