"""Sessions of agents elsewhere: a real server and its client; the engine is a double that samples what the test says."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Any

import aiohttp
import pytest

from nbrl.agent.errors import PolicyError
from nbrl.agent.recorder.chat_api import ChatRequest, RequestError
from nbrl.agent.recorder.recorder import Recorder
from nbrl.agent.settings import AgentSettings
from nbrl.agent.tokens.conversation import Conversations
from nbrl.agent.tokens.rendering import rendering
from nbrl.agent.tokens.tokenizer import ChatTokenizer
from nbrl.agent.trajectory import Trajectory
from nbrl.infra.errors import StorageError
from nbrl.infra.process.child import free_port
from nbrl.tasks.recorded import live
from nbrl.tasks.recorded.live import LiveSessions
from nbrl.tasks.recorded.server import LiveDoor, LiveServer
from tests.agent.families import FAMILIES, write_folder
from tests.agent.test_recorder import Engine, assert_sampled

KEY = "a-key"
SETTINGS = AgentSettings(max_steps=3, context_tokens=4000, action_tokens=20, observation_chars=64)
Ask = Callable[..., Awaitable[tuple[int, dict[str, Any]]]]


@pytest.fixture(scope="module")
def conversations(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Conversations]:
    folder = write_folder(tmp_path_factory.mktemp("family") / "qwen2_5", FAMILIES["qwen2_5"])
    with rendering():
        yield Conversations.load(ChatTokenizer.load(folder), AgentSettings())


class Lab:
    """A server with sessions whose trajectories are kept in a list, with the number of their oldest weights."""

    def __init__(self, conversations: Conversations, sample: Callable[[int, list[int]], list[int]] | None = None) -> None:
        self.ids = [*conversations.encode("yes"), conversations.tokenizer.end_id]
        self.engine = Engine(sample or (lambda number, prompt: self.ids))
        self.engine.version = "7"
        self.kept: list[tuple[int, Trajectory]] = []
        self.fails: list[Exception] = []
        self.delay_s, self.port = 0.0, 0
        self.questions: list[tuple[str, list[str]]] | None = None
        self.sessions = LiveSessions(lambda name: Recorder(conversations, self.engine, SETTINGS, 0), self._store)

    def keep_questions(self, faults: int = 1) -> None:
        """Let the server keep questions, the first of which cannot be written at first."""
        left = [StorageError("the disk is full")] * faults

        def keep(question: str, right: list[str]) -> None:
            if left:
                raise left.pop()
            self.questions = [*(self.questions or ()), (question, right)]

        self.sessions = LiveSessions(self.sessions._recorder, self._store, keep)

    async def _store(self, oldest: int, session: Trajectory) -> dict[str, Any]:
        await asyncio.sleep(self.delay_s)
        if self.fails:
            raise self.fails.pop()
        self.kept.append((oldest, session))
        return {"weights": oldest}

    def run(self, test: Callable[[Ask], Awaitable[None]]) -> None:
        async def served() -> None:
            port = self.port = free_port()
            server = LiveServer(self.sessions, "policy", LiveDoor("127.0.0.1", port, KEY, ""))
            async with server.listening(), aiohttp.ClientSession(f"http://127.0.0.1:{port}", trust_env=False) as client:

                async def ask(path: str, body: Any = None, key: str = KEY, **headers: str) -> tuple[int, dict[str, Any]]:
                    sent = {"Authorization": f"Bearer {key}", **headers}
                    how = {"json": body} if isinstance(body, dict) else {"data": body}
                    async with client.request("GET" if body is None else "POST", path, headers=sent, **how) as answer:
                        return answer.status, await answer.json()

                await test(ask)

        asyncio.run(asyncio.wait_for(served(), 60))


def says(*texts: str) -> dict[str, Any]:
    turns = [{"role": "assistant" if number % 2 else "user", "content": text} for number, text in enumerate(texts)]
    return {"messages": turns}


def code_of(answer: tuple[int, dict[str, Any]]) -> tuple[int, str]:
    return answer[0], str(answer[1]["error"]["code"])


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


def test_questions_are_kept_once_whose_sessions_say_what_is_right(conversations: Conversations) -> None:
    lab = Lab(conversations)
    lab.keep_questions()

    async def test(ask: Ask) -> None:
        system = {"role": "system", "content": "You are brief."}
        for name in ("said", "success", "failure", "silent"):
            sent = {"messages": [system, *says(f"What is {name}?")["messages"]]}
            await ask(f"/sessions/{name}/v1/chat/completions", sent)
            await ask(f"/sessions/{name}/v1/chat/completions", says(f"What is {name}?", "yes", "really?"))
        said = {"reward": 0.2, "answer": "no", "right": ["yes", "Yes.", " "]}
        assert code_of(await ask("/sessions/said/reward", said)) == (503, "storage")
        for _ in range(2):
            assert await ask("/sessions/said/reward", said) == (200, {"weights": 7, "kept": True})
        assert await ask("/sessions/success/reward", {"reward": 1, "answer": "4", "question": "2 + 2?"}) == (
            200,
            {"weights": 7, "kept": True},
        )
        assert await ask("/sessions/failure/reward", {"reward": 0.5, "answer": "5"}) == (200, {"weights": 7})
        assert await ask("/sessions/silent/reward", {"reward": 1}) == (200, {"weights": 7})

    lab.run(test)
    assert lab.questions == [("What is said?", ["yes", "Yes."]), ("2 + 2?", ["4"])]
    assert len(lab.kept) == 4  # each stored once


def test_a_question_is_kept_though_its_session_comes_too_late_and_after_any_fault(conversations: Conversations) -> None:
    lab = Lab(conversations)
    lab.keep_questions(faults=0)

    async def test(ask: Ask) -> None:
        await ask("/sessions/late/v1/chat/completions", says("How late?"))
        lab.fails = [RequestError("too old", "too_old", 409)]
        assert code_of(await ask("/sessions/late/reward", {"reward": 1, "right": ["very"]})) == (409, "too_old")
        await ask("/sessions/odd/v1/chat/completions", says("How odd?"))
        lab.fails = [KeyError("weights")]
        with suppress(aiohttp.ContentTypeError):  # a fault of the server itself
            await ask("/sessions/odd/reward", {"reward": 1, "right": ["very"]})
        assert (await ask("/sessions/odd/reward", {"reward": 1, "right": ["very"]}))[0] == 200

    lab.run(test)
    assert lab.questions == [("How late?", ["very"]), ("How odd?", ["very"])]


def test_a_server_that_keeps_nothing_takes_no_right_answer(conversations: Conversations) -> None:
    lab = Lab(conversations)

    async def test(ask: Ask) -> None:
        await ask("/sessions/a/v1/chat/completions", says("x"))
        status, answer = await ask("/sessions/a/reward", {"reward": 1, "right": ["y"]})
        assert (status, "--keep" in answer["error"]["message"]) == (400, True)
        assert (await ask("/sessions/a/reward", {"reward": 1}))[0] == 200

    lab.run(test)
    assert lab.questions is None


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
