"""What the local Prefect server adds to Prefect's own answers."""

import asyncio
from collections.abc import Sequence

import httpx
import pytest

from nbrl.infra.prefect_app import Message, Receive, Send, answered_again

pytestmark = pytest.mark.inprocess
WAITS_S = (0.0, 0.0, 0.0)


class Server:
    """Answers each request with the next of the statuses; with 503 it raises the reason too, as Prefect's does."""

    def __init__(self, statuses: Sequence[int]) -> None:
        self.left, self.bodies = list(statuses), list[bytes]()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        assert scope.setdefault("root", "/") == "/"  # a scope belongs to one request
        scope["root"] = "/api"
        whole = b""
        while True:
            message = await receive()
            whole += message["body"]
            if not message.get("more_body"):
                break
        self.bodies.append(whole)
        status = self.left.pop(0)
        await send({"type": "http.response.start", "status": status, "headers": [(b"retry-after", b"30")]})
        await send({"type": "http.response.body", "body": str(status).encode()})
        if status in (500, 503):
            raise RuntimeError("database is locked")


def asked(server: Server) -> httpx.Response:
    """The answer to a POST of two pieces."""

    async def pieces():  # type: ignore[no-untyped-def]
        yield b"one "
        yield b"two"

    async def post() -> httpx.Response:
        application = answered_again(server, WAITS_S)
        transport = httpx.ASGITransport(application, raise_app_exceptions=False)  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport) as client:
            return await client.post("http://server/", content=pieces())

    return asyncio.run(post())


@pytest.mark.parametrize(
    ("statuses", "status"),
    [([200], 200), ([503, 201], 201), ([503, 503, 503, 200], 200), ([503, 503, 503, 503], 503), ([423], 423), ([500], 500)],
)
def test_a_request_is_answered_again_until_it_is_not_refused_for_a_locked_database(statuses: list[int], status: int) -> None:
    server = Server(statuses)

    answer = asked(server)

    assert (answer.status_code, answer.text, answer.headers["retry-after"]) == (status, str(status), "30")
    assert server.bodies == [b"one two"] * len(statuses)


def test_what_is_no_request_passes_unchanged() -> None:
    seen: list[Message] = []

    async def application(scope: Message, receive: Receive, send: Send) -> None:
        seen.append(scope)

    scope: Message = {"type": "websocket"}
    nothing: Receive = asyncio.Event().wait  # type: ignore[assignment]
    asyncio.run(answered_again(application)(scope, nothing, nothing))  # type: ignore[arg-type]

    assert seen[0] is scope
