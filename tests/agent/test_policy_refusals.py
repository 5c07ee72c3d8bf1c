"""What chat servers refuse: of any conversation, of one conversation, or of its parameters."""

import asyncio

import httpx
import pytest

from nbrl.agent.errors import PolicyError, RefusedError
from nbrl.agent.policies.chat import ChatPolicy
from nbrl.agent.policies.settings import ChatSettings
from nbrl.agent.policy import Sampling
from tests.agent.chat_lab import KEY, PROMPT, ask, completion
from tests.chat_server import Reply, Server, serving


@pytest.mark.parametrize(
    ("status", "hint"), [(400, "context length"), (401, "a key that"), (403, "a key that"), (404, "endpoint"), (307, "redirect")]
)
def test_a_refusal_is_final_and_never_shows_the_key(status: int, hint: str) -> None:
    with serving(Reply(f"no: {KEY}" + " " * 10 + "x" * 1000, status, {"Location": "/"})) as server:
        with pytest.raises(PolicyError, match=f"answered {status}") as caught:
            ask(server, key=KEY)
        assert hint in str(caught.value)
        assert not isinstance(caught.value, RefusedError)
        assert KEY not in str(caught.value)
        assert len(str(caught.value)) < 700
        assert {head["Authorization"] for head in server.heads} == {f"Bearer {KEY}"}
        assert len(server.heads) == 1 + (status in (400, 403, 404))  # those may be of this conversation alone


def test_a_server_with_the_other_word_for_the_limit_gets_it() -> None:
    refusal = Reply({"error": "Unsupported parameter: use 'max_completion_tokens' instead."}, 400)
    with serving(refusal, refusal, Reply(completion("hello"))) as server:
        assert ask(server).text == "hello"
    said = [("max_tokens" in body, body.get("max_completion_tokens")) for body in server.bodies]
    assert said == [(True, None), (True, None), (False, 48)]


def refusal(said: str, status: int = 400, **error: str) -> Reply:
    return Reply({"error": {"message": said, **error}}, status)


@pytest.mark.parametrize(
    ("replies", "sent"),
    [
        ([refusal("give temperature or top_p, not both")], [{"temperature"}]),
        ([refusal("no temperature with top_p", param="temperature")], [{"top_p"}]),
        ([refusal("topP is not supported"), refusal("Temperature: no", param="Temperature")], [{"temperature"}, set()]),
        ([refusal("temperature with top-p", param="topP")], [{"temperature"}]),
        ([refusal("unsupported: temperature"), refusal("unsupported: top_p", 422)], [{"top_p"}, set()]),
    ],
)
def test_sampling_parameters_at_1_that_a_server_refuses_are_left_out(replies: list[Reply], sent: list[set[str]]) -> None:
    told: list[str] = []

    async def run(server: Server) -> None:
        async with httpx.AsyncClient(trust_env=False) as client:
            policy = ChatPolicy(client, ChatSettings(endpoint=server.url, model="m"), Sampling(), report=told.append)
            for _ in range(2):
                assert (await policy.generate(PROMPT, 48, seed=5)).text == "hello"

    twice = [reply for reply in replies for _ in range(2)]  # to the conversation, and to another one
    with serving(*twice, Reply(completion("hello"))) as server:
        asyncio.run(run(server))
    shown = [{"temperature", "top_p"} & body.keys() for body in server.bodies]
    assert shown[::2] == [{"temperature", "top_p"}, *sent]
    assert shown[-1] == sent[-1]
    assert len(told) == len(replies)


def test_a_refused_temperature_that_was_chosen_is_final_unless_it_is_not_needed() -> None:
    refused = refusal("temperature does not support 0.7")
    with serving(refused) as server, pytest.raises(PolicyError, match="at 1 the request goes without temperature"):
        ask(server)
    with serving(refused, refused, Reply(completion("hello"))) as server:
        assert ask(server, firm=False).text == "hello"


TOO_LONG = {"error": {"message": "This model's maximum context length is 4096 tokens", "code": "context_length_exceeded"}}


@pytest.mark.parametrize(
    "reply",
    [
        Reply(TOO_LONG, 400),
        Reply(TOO_LONG, 200),
        Reply(TOO_LONG, 500, {"Retry-After": "0"}),
        Reply({"error": {"message": "flagged by moderation", "metadata": {"flagged_input": "temperature and top_p"}}}, 403),
        *(Reply("x", status) for status in (404, 413, 418, 424, 431, 451)),
        Reply(completion("hel", "error"), 200, {"Retry-After": "0"}),
        Reply({"choices": [{"message": None}]}),
        Reply({"choices": [None]}, 200, {"Retry-After": "0"}),
    ],
)
def test_what_a_server_refuses_of_one_conversation_alone_is_that_conversations_fault(
    reply: Reply, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nbrl.agent.policies.chat.RETRIES", 0)
    with serving(reply, Reply(completion("yes")), reply) as server:
        with pytest.raises(RefusedError):
            ask(server, firm=False)
        assert all("temperature" in body for body in server.bodies)


@pytest.mark.parametrize("said", ["Your credit balance is too low", "the model m is not served", "context_length_exceeded"])
def test_what_a_server_refuses_of_any_conversation_is_its_own_fault(said: str) -> None:
    with serving(refusal(said)) as server, pytest.raises(PolicyError, match=said) as caught:
        ask(server)
    assert not isinstance(caught.value, RefusedError)


@pytest.mark.parametrize(
    "fault",
    [
        Reply("", 502),
        Reply(""),
        Reply({"detail": "overloaded"}),
        Reply({"choices": [{"message": None}]}),
        Reply("[" * 200_000),
        Reply("x", headers={"Content-Encoding": "br"}),
    ],
)
def test_a_server_that_comes_back_after_the_last_try_is_asked_once_more(fault: Reply, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nbrl.agent.policies.chat.RETRIES", 0)
    with serving(fault, Reply(completion("yes")), Reply(completion("hello"))) as server:
        assert ask(server).text == "hello"


def test_a_server_that_fails_when_it_is_asked_once_more_is_tried_again() -> None:
    busy = [Reply("", status, {"Retry-After": "0"}) for status in (503, 500)]
    with serving(Reply(""), Reply(completion("yes")), *busy, Reply(completion("hello"))) as server:
        assert ask(server).text == "hello"


@pytest.mark.parametrize("status", [401, 402, 405, 429, 503])
def test_a_refusal_that_no_conversation_causes_is_of_the_server(status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nbrl.agent.policies.chat.RETRIES", 0)
    with serving(Reply("x", status), Reply(completion("yes"))) as server:
        with pytest.raises(PolicyError) as caught:
            ask(server)
        assert not isinstance(caught.value, RefusedError)
        assert len(server.bodies) == 1
