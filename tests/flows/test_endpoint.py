"""What is asked of an address before any question."""

import asyncio
import socket
from contextlib import AsyncExitStack

import pytest

import nbrl.flows.ask.endpoint
from nbrl.agent.policies.chat import ChatPolicy
from nbrl.agent.policy import Policy, Sampling
from nbrl.agent.settings import AgentSettings
from nbrl.agent.tokens.tokenizer import Renderer
from nbrl.flows.ask.endpoint import Endpoint, Flags, ask, connect, served
from nbrl.tasks.errors import ConfigError
from tests.agent.tool_server import Said, serving


def test_a_server_that_takes_and_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nbrl.flows.ask.endpoint, "ABOUT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = Endpoint(f"http://127.0.0.1:{silent.getsockname()[1]}")

        async def work() -> None:
            async with endpoint.client() as client:
                await ask(client, f"{endpoint.url}/model_info", Flags())

        with pytest.raises(ConfigError, match=r"nothing answers at .*TimeoutError; start the server or correct --endpoint"):
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
        (b"[" * 200_000, {}),
    ],
)
def test_whatever_a_server_says_of_its_models_is_taken_for_what_it_is(said: object, known: dict[str, int | None]) -> None:
    with serving(Said(said)) as server:

        async def work() -> dict[str, int | None]:
            endpoint = Endpoint(server.url)
            async with endpoint.client() as client:
                return await served(client, endpoint)

        assert asyncio.run(work()) == known


def test_a_server_that_says_too_much_of_itself_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nbrl.flows.ask.endpoint, "ABOUT_BYTES", 1_000)
    with serving(Said({"data": [{"id": "x" * 2_000}]})) as server, pytest.raises(ConfigError, match="larger than 1000 bytes"):
        asyncio.run(_connected(Endpoint(server.url)))


@pytest.mark.parametrize("path", ["/\0", "/" + "x" * 5_000, ""])
def test_a_tokenizer_that_is_not_here_is_not_looked_for(path: str) -> None:
    said = {"/get_model_info": Said({"tokenizer_path": path}), "/v1/models": Said({"data": [{"id": "m"}]})}
    with serving(route=lambda asked: said.get(asked, Said(status=404))) as server:
        policy, _ = asyncio.run(_connected(Endpoint(server.url)))
    assert isinstance(policy, ChatPolicy)


def test_a_model_whose_name_cannot_be_sent_is_refused() -> None:
    with serving(Said(b'{"data": [{"id": "\\ud800"}]}')) as server, pytest.raises(ConfigError, match="--model"):
        asyncio.run(_connected(Endpoint(server.url)))


def test_an_address_that_no_request_can_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="is not an address"):
        Endpoint("http://127.0.0.1/\udcff").client()


async def _connected(endpoint: Endpoint) -> tuple[Policy, Renderer]:
    async with AsyncExitStack() as stack:
        return await connect(stack, endpoint, Sampling(), AgentSettings())
