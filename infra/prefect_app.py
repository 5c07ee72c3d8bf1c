"""The application of the local Prefect server: Prefect's own, which tells clients to repeat soon what met a locked database."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from prefect.server.api.server import create_app

AGAIN_S = 0.25
UNAVAILABLE = 503

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]


def create() -> Application:
    return repeated_soon(create_app())


def repeated_soon(application: Application) -> Application:
    """The application, which adds `Retry-After` to answers of status 503 that have none.

    SQLite refuses at once a transaction that read before another one wrote. Prefect's server answers 503 then, and its clients
    repeat such a request after 2 s unless this header says otherwise; flows that run at the same time often meet so.
    """

    async def wrapped(scope: Message, receive: Receive, send: Send) -> None:
        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == UNAVAILABLE:
                headers = list(message.get("headers", ()))
                if not any(name.lower() == b"retry-after" for name, _ in headers):
                    message = {**message, "headers": [*headers, (b"retry-after", str(AGAIN_S).encode())]}
            await send(message)

        await application(scope, receive, answer)

    return wrapped
