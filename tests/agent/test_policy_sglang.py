import asyncio

import pytest

from nbrl.agent.errors import PolicyError
from nbrl.agent.messages import Message, Prompt
from nbrl.agent.policies import sglang
from nbrl.agent.policies.sglang import SglangPolicy, engine_session
from nbrl.agent.policy import Generation, Sampling
from tests.chat_server import Hold, Reply, Server, serving

PROMPT = Prompt([[5, 6, 7]], [Message("user", "hi")])
META = {
    "finish_reason": {"type": "stop", "matched": 2},
    "weight_version": "7",
    "output_token_logprobs": [[-0.5, 11, None], [-0.25, 2, None]],
}
GENERATION = Generation([11, 2], [-0.5, -0.25], "7", "stop")


def ask(server: Server, times: int = 1, pause: float = 0.0, timeout_s: float = 30.0, seeded: bool = False) -> list[Generation]:
    async def run() -> list[Generation]:
        async with engine_session(timeout_s) as session:
            policy = SglangPolicy(session, server.url, [2, 0], Sampling(temperature=0.7, top_p=0.9), seeded)
            answers = []
            for number in range(times):
                answers.append(await policy.generate(PROMPT, 48, seed=number))
                await asyncio.sleep(pause)
            return answers

    return asyncio.run(run())


@pytest.mark.parametrize("chunked", [False, True])
def test_ids_go_in_and_come_out(chunked: bool) -> None:
    with serving(Reply({"meta_info": META}, chunked=chunked)) as server:
        assert ask(server, 3) == [GENERATION] * 3
        assert server.connections == 1
    body = server.bodies[0]
    assert (server.paths[0], body["input_ids"], body["return_logprob"]) == ("/generate", [5, 6, 7], True)
    assert body["sampling_params"] == {"temperature": 0.7, "top_p": 0.9, "max_new_tokens": 48, "stop_token_ids": [2, 0]}


def test_the_seed_goes_to_servers_that_sample_by_it() -> None:
    with serving(Reply({"meta_info": META})) as server:
        ask(server, 2, seeded=True)
    assert [body["sampling_params"]["sampling_seed"] for body in server.bodies] == [0, 1]


@pytest.mark.parametrize("pause", [0.0, 0.1])
def test_a_connection_that_the_server_closed_is_replaced(pause: float) -> None:
    with serving(Reply({"meta_info": META}, close="after")) as server:
        assert ask(server, 3, pause) == [GENERATION] * 3
    with serving(Reply(close="before"), Reply({"meta_info": META})) as server:
        assert ask(server) == [GENERATION]


def test_a_server_that_always_closes_is_a_policy_error() -> None:
    with serving(Reply(close="before")) as server:
        with pytest.raises(PolicyError, match="did not answer a generation"):
            ask(server)
        assert len(server.bodies) == 2


@pytest.mark.parametrize("away", [Reply(close="before"), Reply({"error": "shutting down"}, status=503)], ids=["gone", "503"])
def test_a_server_that_is_away_is_asked_the_same_until_it_is_back(away: Reply, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sglang, "AWAY_POLL_S", 0.01)

    async def run(server: Server) -> bool:
        async with engine_session(30) as session:
            policy = SglangPolicy(session, server.url, [2], Sampling(), True, away_s=30)
            assert await policy.generate(PROMPT, 48, seed=9) == GENERATION
            return policy.interrupted

    with serving(away, away, away, Reply({"meta_info": META})) as server:
        assert asyncio.run(run(server))
        assert len(server.bodies) == 4
        assert all(body == server.bodies[0] for body in server.bodies)
    with serving(Reply({"meta_info": META})) as server:
        assert not asyncio.run(run(server))


def test_whether_a_server_serves_can_be_asked() -> None:
    async def run(server: Server) -> bool:
        async with engine_session(30) as session:
            return await SglangPolicy(session, server.url, [2], Sampling()).serves()

    with serving() as server:
        assert asyncio.run(run(server))
    assert not asyncio.run(run(server))


@pytest.mark.parametrize(
    ("reply", "reason"),
    [
        (Reply({"error": "too long"}, status=400), "answered 400 to /generate.*too long"),
        (Reply("<html>"), "did not answer a generation: JSONDecodeError"),
        (Reply({"meta_info": {}}), "did not answer a generation: KeyError"),
        (Reply([]), "did not answer a generation: TypeError"),
        (Reply("[" * 200_000), "did not answer a generation: RecursionError"),
        (Reply({"meta_info": {**META, "output_token_logprobs": [[-0.1, 2**31]]}}), "a sampled id is no token"),
        (Reply({"meta_info": {**META, "output_token_logprobs": [[-0.1, float("inf")]]}}), "OverflowError"),
        (Reply({"meta_info": {**META, "output_token_logprobs": [[float("nan"), 11]]}}), "a log-prob is no number"),
        (Reply({"meta_info": {**META, "output_token_logprobs": [[-0.1, 11]] * 49}}), "it sampled 49 tokens .* at most 48"),
        (Reply({"meta_info": {**META, "finish_reason": {"type": "abort"}}}), "ended a generation with 'abort'"),
    ],
)
def test_nonsense_is_a_policy_error(reply: Reply, reason: str) -> None:
    with serving(reply) as server, pytest.raises(PolicyError, match=reason):
        ask(server)


def test_an_error_that_repeats_the_key_is_told_without_it() -> None:
    async def run(server: Server) -> None:
        async with engine_session(30, {"Authorization": "Bearer sk-secret"}) as session:
            await SglangPolicy(session, server.url, [2], Sampling()).generate(PROMPT, 48, 0)

    refusal, words = Reply({"error": "Bearer sk-secret is wrong"}, status=401), r"answered 401 .*Bearer \[key\] is wrong"
    with serving(refusal) as server, pytest.raises(PolicyError, match=words):
        asyncio.run(run(server))


def test_a_server_that_is_gone_or_silent_is_a_policy_error() -> None:
    with serving() as server:
        pass
    with pytest.raises(PolicyError, match=r"did not answer a generation: Client"):
        ask(server)
    hold = Hold()
    with serving(hold) as server:
        with pytest.raises(PolicyError, match=r"did not answer a generation: .*Timeout"):
            ask(server, timeout_s=0.2)
        assert len(server.bodies) == 1


def test_a_cancelled_generation_closes_its_connection() -> None:
    """So that the engine stops generating."""
    hold = Hold()

    async def run(server: Server) -> None:
        async with engine_session(60) as session:
            policy = SglangPolicy(session, server.url, [2], Sampling())
            task = asyncio.create_task(policy.generate(PROMPT, 48, 0))
            await asyncio.to_thread(hold.asked.wait, 30)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await asyncio.to_thread(hold.left.wait, 30)

    with serving(hold) as server:
        asyncio.run(run(server))
