"""What the local Prefect server adds to Prefect's own answers."""

import asyncio

import httpx
import pytest

from nbrl.infra.prefect_app import Message, Receive, Send, repeated_soon

pytestmark = pytest.mark.inprocess


@pytest.mark.parametrize(
    ("status", "headers", "expected"),
    [(503, [], "0.25"), (503, [(b"Retry-After", b"7")], "7"), (423, [(b"retry-after", b"30")], "30"), (200, [], None)],
)
def test_only_an_answer_of_503_without_a_time_gets_one(
    status: int, headers: list[tuple[bytes, bytes]], expected: str | None
) -> None:
    async def application(scope: Message, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"said"})

    async def asked() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(repeated_soon(application))) as client:  # type: ignore[arg-type]
            return await client.get("http://server/")

    answer = asyncio.run(asked())
    assert (answer.status_code, answer.text, answer.headers.get("retry-after")) == (status, "said", expected)
