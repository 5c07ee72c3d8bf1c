"""Serves pages, or metrics while a training runs, in a thread of this process. uvicorn is imported on first use."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from nbrl.infra.errors import ServerError
from nbrl.infra.process.identity import advertised
from nbrl.infra.process.own_pages import Application

if TYPE_CHECKING:
    import uvicorn

START_S, END_S = 30.0, 5.0
REQUESTS_S = 2  # that requests have to end when the server does
# Beside a page's own: nothing is loaded from elsewhere, and no other page shows these in a frame.
HEADERS = {"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer"}


@contextmanager
def served(application: Application, host: str, port: int) -> Iterator[str]:
    """Serve the application until the end; yields its address. Raises ServerError if it cannot be served there."""
    import uvicorn

    config = uvicorn.Config(
        application, host=host, port=port, log_level="error", access_log=False, timeout_graceful_shutdown=REQUESTS_S
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=_run, args=(server,), name="pages", daemon=True)
    thread.start()
    deadline = time.monotonic() + START_S
    while not server.started:
        if not thread.is_alive() or time.monotonic() > deadline:
            raise ServerError(f"nothing can be served at {host}:{port}; choose another port or address")
        time.sleep(0.05)
    try:
        yield f"http://{advertised(host)}:{port}"
    finally:
        server.should_exit = True
        thread.join(END_S)


def _run(server: "uvicorn.Server") -> None:
    with suppress(SystemExit):  # by which it ends where it cannot have the address
        server.run()
