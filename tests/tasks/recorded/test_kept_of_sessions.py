"""Questions of live sessions that are kept to learn from."""

from contextlib import suppress

import aiohttp

from nbrl.agent.recorder.chat_api import RequestError
from nbrl.agent.tokens.conversation import Conversations
from tests.tasks.recorded.live_lab import Ask, Lab, code_of, says


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
