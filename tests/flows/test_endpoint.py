"""What is asked of an address before any question."""

import asyncio
import socket

import pytest

import flows.endpoint
from flows.endpoint import Endpoint, ask, served
from tasks.errors import ConfigError
from tests.agent.tool_server import Said, serving


def test_a_server_that_takes_and_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flows.endpoint, "ABOUT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = Endpoint(f"http://127.0.0.1:{silent.getsockname()[1]}")

        async def work() -> None:
            async with endpoint.client() as client:
                await ask(client, f"{endpoint.url}/model_info")

        with pytest.raises(ConfigError, match=r"nothing answers at .*ReadTimeout; start the server or correct --endpoint"):
            asyncio.run(work())


@pytest.mark.parametrize(
    ("said", "known"),
    [
        (
            {"data": [{"id": "a", "max_model_len": 10}, {"id": "b"}, {"id": 3, "max_model_len": "x"}]},
            {"a": 10, "b": None, "3": None},
        ),
        ({"data": ["a", None, {}]}, {}),
        ({"data": 3}, {}),
        ([], {}),
        (b"no json", {}),
    ],
)
def test_whatever_a_server_says_of_its_models_is_taken_for_what_it_is(said: object, known: dict[str, int | None]) -> None:
    with serving(Said(said)) as server:

        async def work() -> dict[str, int | None]:
            endpoint = Endpoint(server.url)
            async with endpoint.client() as client:
                return await served(client, endpoint)

        assert asyncio.run(work()) == known
