"""Sessions of agents elsewhere: a real server and its client; the engine is a double that samples what the test says."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import aiohttp
import pytest

from nbrl.agent.errors import PolicyError
from nbrl.agent.recorder.chat_api import ChatRequest, RequestError
from nbrl.agent.tokens.conversation import Conversations
from nbrl.infra.errors import StorageError
from nbrl.tasks.recorded import live
from tests.agent.test_recorder import Engine, assert_sampled
from tests.tasks.recorded.live_lab import KEY, SETTINGS, Ask, Lab, code_of, says


def test_a_session_is_what_comes_under_its_name_until_its_reward(conversations: Conversations) -> None:
    lab = Lab(conversations)

    async def test(ask: Ask) -> None:
        first = await ask("/sessions/one/v1/chat/completions", says("How many?"))
        assert first[1]["choices"][0]["message"]["content"] == "yes"
        await ask("/v1/chat/completions", says("Where?"), **{"X-Session-ID": "two"})
        await ask("/v1/messages", {**says("How many?", "yes", "really?"), "max_tokens": 9}, **{"X-Session-ID": "one"})
        assert await ask("/sessions/one/reward", {"reward": 0.5, "group": "g", "answer": "4"}) == (200, {"weights": 7})
        assert (await ask("/v1/models"))[1]["data"][0]["id"] == "policy"
        assert (await ask("/reward", {"reward": 1, "metrics": {"length": 3}}, **{"X-Session-ID": "two"}))[0] == 200

    lab.run(test)
    (oldest, one), (_, two) = lab.kept
    assert (oldest, one.id.partition(".")[0], one.group, one.answer, one.question) == (7, "one", "g", "4", "user: How many?")
    assert one.outcome == '{"success": false, "reward": 0.5, "metrics": {}}'
    assert two.outcome == '{"success": true, "reward": 1.0, "metrics": {"length": 3.0}}'
    assert [len(one.steps), len(two.steps)] == [2, 1]
    alone = Engine(lambda number, prompt: lab.ids)
    alone.calls = [lab.engine.calls[0], lab.engine.calls[2]]
    assert_sampled(one, alone)
    assert len(lab.sessions) == 0


def test_who_has_no_key_or_names_no_session_gets_nothing(conversations: Conversations) -> None:
    lab = Lab(conversations)

    async def test(ask: Ask) -> None:
        for key in ("", "another", "a-keyé"):
            for path in ("/sessions/a/v1/chat/completions", "/sessions/a/reward", "/sessions/a/v1/messages"):
                assert (await ask(path, says("x"), key=key))[0] == 401
            assert (await ask("/v1/models", key=key))[0] == 401
        assert code_of(await ask("/v1/chat/completions", says("x"))) == (400, "no_session")
        for name in ("a%2Fb", "..%2F..", "a" * 65, "%00", "é"):
            assert (await ask(f"/sessions/{name}/v1/chat/completions", says("x")))[0] in (400, 404)
        assert (await ask("/sessions/b/v1/chat/completions", says("x"), key="", **{"x-api-key": KEY}))[0] == 200

    lab.run(test)
    assert len(lab.sessions) == 1


def test_a_reward_ends_a_session_once(conversations: Conversations) -> None:
    lab = Lab(conversations)

    async def test(ask: Ask) -> None:
        assert code_of(await ask("/sessions/a/reward", {"reward": 1})) == (404, "no_session")
        await ask("/sessions/a/v1/chat/completions", says("x"))
        lab.fails = [StorageError("the disk is full")]
        assert code_of(await ask("/sessions/a/reward", {"reward": 1})) == (503, "storage")
        assert code_of(await ask("/sessions/a/reward", {"reward": 0})) == (409, "ended")  # it may have been stored
        both = await asyncio.gather(*(ask("/sessions/a/reward", {"reward": 1}) for _ in range(2)))
        assert [each[0] for each in both] == [200, 200]
        assert await ask("/sessions/a/reward", {"reward": 1}) == (200, {"weights": 7})
        assert code_of(await ask("/sessions/a/reward", {"reward": 0})) == (409, "ended")
        assert code_of(await ask("/sessions/a/v1/chat/completions", says("x"))) == (410, "ended")

    lab.run(test)
    assert len(lab.kept) == 1


@pytest.mark.parametrize(
    "body",
    [
        b"{", b"[]", b'{"reward": NaN}', b'{"reward": 1.5}', b'{"reward": -1}', b'{"reward": "1"}', b'{"reward": true}', b"{}",
        b'{"reward": 1, "more": 2}', b'{"reward": 1, "group": "../x"}', b'{"reward": 1, "metrics": {"a b": 1}}',
        b'{"reward": 1, "metrics": {"a": Infinity}}', b'{"reward": 1e999}', b"[" * 200_000, b'{"reward": 1, "answer": 3}',
    ],
)  # fmt: skip
def test_what_is_no_reward_is_refused_and_the_session_waits(conversations: Conversations, body: bytes) -> None:
    lab = Lab(conversations)

    async def test(ask: Ask) -> None:
        await ask("/sessions/a/v1/chat/completions", says("x"))
        assert (await ask("/sessions/a/reward", body))[0] in (400, 413)
        assert (await ask("/sessions/a/reward", {"reward": 1}))[0] == 200

    lab.run(test)


def test_a_session_without_an_answer_or_with_a_failed_engine_cannot_be_rewarded(conversations: Conversations) -> None:
    def away(number: int, prompt: list[int]) -> list[int]:
        raise PolicyError("away")

    lab = Lab(conversations, away)

    async def test(ask: Ask) -> None:
        for body in (b"{", {"messages": []}, says("x" * 600_000)):
            assert (await ask("/sessions/a/v1/chat/completions", body))[0] == 400
        assert len(lab.sessions) == 0
        assert (await ask("/sessions/a/v1/chat/completions", says("x")))[0] == 503
        assert code_of(await ask("/sessions/a/reward", {"reward": 1})) == (503, "engine")
        assert code_of(await ask("/sessions/a/reward", {"reward": 1})) == (404, "no_session")

    lab.run(test)
    assert lab.kept == []


def test_what_is_too_old_ends_its_session(conversations: Conversations) -> None:
    lab = Lab(conversations)

    async def test(ask: Ask) -> None:
        await ask("/sessions/a/v1/chat/completions", says("x"))
        lab.fails = [RequestError("older", "too_old", 409)]
        for _ in range(2):
            assert code_of(await ask("/sessions/a/reward", {"reward": 1})) == (409, "too_old")

    lab.run(test)
    assert (len(lab.sessions), lab.kept) == (0, [])


def test_a_reward_whose_client_has_gone_is_stored_once(conversations: Conversations) -> None:
    lab = Lab(conversations)
    lab.delay_s = 0.3

    async def test(ask: Ask) -> None:
        await ask("/sessions/a/v1/chat/completions", says("x"))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ask("/sessions/a/reward", {"reward": 1}), 0.1)
        assert code_of(await ask("/sessions/a/v1/chat/completions", says("more"))) == (410, "ended")
        assert (await ask("/sessions/a/reward", {"reward": 1}))[0] == 200

    lab.run(test)
    assert len(lab.kept) == 1


def test_groups_without_a_name_are_of_one_first_request(conversations: Conversations) -> None:
    lab, long = Lab(conversations), "x " * 200
    firsts = [says("a"), says("b", "yes", "c"), says("d", "yes", "c"), says(f"{long}a{long}"), says(f"{long}b{long}"), says("a")]

    async def test(ask: Ask) -> None:
        for number, first in enumerate(firsts):
            await ask(f"/sessions/s{number}/v1/chat/completions", first)
            await ask(f"/sessions/s{number}/reward", {"reward": 1})

    lab.run(test)
    groups = [session.group for _, session in lab.kept]
    assert groups[0] == groups[5]
    assert len(set(groups)) == 5


def test_a_body_that_does_not_come_holds_up_no_new_weights(conversations: Conversations) -> None:
    lab = Lab(conversations)

    async def test(ask: Ask) -> None:
        await ask("/sessions/a/v1/chat/completions", says("x"))
        _, writer = await asyncio.open_connection("127.0.0.1", lab.port)
        head = f"POST /sessions/b/v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\n"
        head += "Content-Length: 90\r\n\r\n{"
        writer.write(head.encode())
        await writer.drain()
        await asyncio.sleep(0.1)
        await asyncio.wait_for(changed(lab, [], 0.1), 5)
        assert (await ask("/sessions/a/v1/chat/completions", says("x")))[0] == 200
        writer.close()

    lab.run(test)


def test_a_gigabyte_is_refused_after_its_first_megabytes(conversations: Conversations) -> None:
    lab, sent = Lab(conversations), list[int]()

    async def gigabyte() -> AsyncIterator[bytes]:
        for _ in range(1024):
            sent.append(1)
            yield b" " * (1 << 20)

    async def test(ask: Ask) -> None:
        with suppress(aiohttp.ClientError):  # the server closes the connection while it is still written to
            assert (await ask("/sessions/a/v1/chat/completions", gigabyte()))[0] == 413
        assert (await ask("/sessions/a/v1/chat/completions", says("x")))[0] == 200

    lab.run(test)
    assert len(sent) < 64


def test_a_hundred_thousand_requests_cost_no_more_than_those_that_are_answered(conversations: Conversations) -> None:
    lab = Lab(conversations)

    async def run() -> None:
        refused = 0
        for _ in range(100_000):
            try:
                await lab.sessions.reply("a", ChatRequest([{"role": "user", "content": "x"}]))
            except RequestError as error:
                refused += error.code == "step_limit"
        assert refused == 100_000 - SETTINGS.max_steps

    asyncio.run(run())
    assert len(lab.engine.calls) == SETTINGS.max_steps


def test_a_packed_body_is_not_unpacked(conversations: Conversations) -> None:
    lab = Lab(conversations)

    async def test(ask: Ask) -> None:
        status, _ = await ask("/sessions/a/v1/chat/completions", b"x", **{"Content-Encoding": "gzip"})
        assert status == 415

    lab.run(test)


def test_too_many_open_sessions_are_refused_and_forgotten_ones_give_their_place(
    conversations: Conversations, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "OPEN", 3)
    lab = Lab(conversations)

    async def test(ask: Ask) -> None:
        codes = [(await ask(f"/sessions/{name}/v1/chat/completions", says("x")))[0] for name in "abcd"]
        assert codes == [200, 200, 200, 429]
        monkeypatch.setattr(live, "IDLE_S", 0.0)
        assert (await ask("/sessions/d/v1/chat/completions", says("x")))[0] == 200

    lab.run(test)
    assert len(lab.sessions) == 3


def test_weights_change_between_requests_and_new_sessions_wait_for_open_ones(conversations: Conversations) -> None:
    lab, said = Lab(conversations), list[str]()

    async def test(ask: Ask) -> None:
        begun, waited_for = asyncio.Event(), asyncio.Event()

        async def session(name: str) -> None:
            for _ in range(2):
                await ask(f"/sessions/{name}/v1/chat/completions", says("x"))
                said.append(name)
                begun.set()
                await waited_for.wait()
            await ask(f"/sessions/{name}/reward", {"reward": 1})
            said.append(f"{name} ended")

        old = asyncio.create_task(session("old"))
        await begun.wait()
        changing = asyncio.create_task(changed(lab, said))
        await asyncio.sleep(0)
        new = asyncio.create_task(session("new"))
        waited_for.set()
        await asyncio.gather(old, changing, new)

    lab.run(test)
    assert said == ["old", "old", "old ended", "weights 8", "new", "new", "new ended"]
    assert [oldest for oldest, _ in lab.kept] == [7, 8]


async def changed(lab: Lab, said: list[str], patience_s: float = 30.0) -> None:
    async with lab.sessions.quiet(patience_s):
        lab.engine.version = "8"
        said.append("weights 8")


def test_a_session_that_is_not_ended_holds_new_weights_up_for_a_moment_only(conversations: Conversations) -> None:
    lab = Lab(conversations)

    async def test(ask: Ask) -> None:
        await ask("/sessions/a/v1/chat/completions", says("x"))
        await asyncio.wait_for(changed(lab, [], 0.3), 5)
        await ask("/sessions/a/v1/chat/completions", says("x"))
        await ask("/sessions/a/reward", {"reward": 1})

    lab.run(test)
    ((oldest, made),) = lab.kept
    assert (oldest, sorted({node.weights_version for node in made.sampled()})) == (7, ["7", "8"])


def test_a_request_whose_client_has_gone_is_given_up(conversations: Conversations) -> None:
    lab, given_up = Lab(conversations), asyncio.Event()

    async def test(ask: Ask) -> None:
        generate = lab.engine.generate

        async def slow(*given: Any) -> Any:
            try:
                await asyncio.sleep(0.5 if given_up.is_set() else 30)
            except asyncio.CancelledError:
                given_up.set()
                raise
            return await generate(*given)

        lab.engine.generate = slow  # type: ignore[method-assign]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ask("/sessions/a/v1/chat/completions", says("x")), 0.3)
        await asyncio.wait_for(given_up.wait(), 5)
        await ask("/sessions/a/v1/chat/completions", says("x"))
        await ask("/sessions/a/reward", {"reward": 1})

    lab.run(test)
    assert len(lab.kept[0][1].steps) == 1
