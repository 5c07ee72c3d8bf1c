"""The application of the local Prefect server: Prefect's own, which repeats requests that met a locked database.

It answers its own pages and programs alone: a flow run's parameters can name commands.
"""

import asyncio
import random
from collections.abc import Sequence
from datetime import timedelta

from nbrl.infra.process.garbage import without_collection
from nbrl.infra.process.own_pages import Application, Message, Receive, Send, for_own_pages

WAITS_S = (0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)  # each times a random factor of 0.5 to 1.5
UNAVAILABLE = 503
LATE = timedelta(seconds=10)


def create() -> Application:
    with without_collection():
        from prefect.server.api.server import create_app
        from prefect.server.events.ordering import memory

        # An event waits so long for the one that it follows, which for a flow run of a schedule does not exist: an automation
        # would get its crash after a quarter of an hour.
        memory.PRECEDING_EVENT_LOOKBACK = LATE

        return for_own_pages(answered_again(create_app()))


def answered_again(application: Application, waits_s: Sequence[float] = WAITS_S) -> Application:
    """Return the application, which is given a request again after each of the waits while it answers with status 503.

    SQLite refuses at once a transaction that read before another one wrote. Prefect's server undoes it and answers 503, and its
    clients repeat such a request after 2, 4, 8 seconds and so on; flows that run at the same time often meet so.
    """

    async def wrapped(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await application(scope, receive, send)
        request = [await receive()]
        while request[-1].get("more_body"):
            request.append(await receive())
        for wait_s in waits_s:
            if await _answered(application, dict(scope), _replayed(request, receive), send):
                return None
            await asyncio.sleep(wait_s * random.uniform(0.5, 1.5))
        return await application(scope, _replayed(request, receive), send)

    return wrapped


async def _answered(application: Application, scope: Message, receive: Receive, send: Send) -> bool:
    """Return whether the application answered otherwise than with 503, which is not sent."""
    refused = False

    async def answer(message: Message) -> None:
        nonlocal refused
        if message["type"] == "http.response.start":
            refused = message["status"] == UNAVAILABLE
        if not refused:
            await send(message)

    try:
        await application(scope, receive, answer)
    except Exception:
        if not refused:  # else it is the reason for that answer
            raise
    return not refused


def _replayed(request: Sequence[Message], receive: Receive) -> Receive:
    """Return the messages of a request that were received, and what comes after them."""
    left = list(request)

    async def received() -> Message:
        return left.pop(0) if left else await receive()

    return received
