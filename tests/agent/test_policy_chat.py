import asyncio
import base64
from datetime import UTC, datetime
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from nbrl.agent.episode import Episode, Task
from nbrl.agent.errors import PolicyError
from nbrl.agent.grammar import Action, Grammar
from nbrl.agent.http.client import Retry, retry_after
from nbrl.agent.kernels.inline import InlineKernel
from nbrl.agent.kernels.prelude import prelude
from nbrl.agent.messages import Message
from nbrl.agent.policies.chat import ChatPolicy
from nbrl.agent.policies.completion import BROKEN, chat_messages
from nbrl.agent.policies.recorded import ScriptedPolicy
from nbrl.agent.policies.settings import ChatSettings
from nbrl.agent.policy import Generation, Sampling
from nbrl.agent.settings import AgentSettings
from nbrl.agent.tokens.estimated import EstimatingRenderer
from nbrl.agent.tokens.tokenizer import UNKNOWN
from nbrl.agent.tools.base import Toolbox
from nbrl.agent.trajectory import Status, Trajectory
from tests.agent.chat_lab import PNG, PROMPT, ask, completion
from tests.chat_server import Hold, Reply, Server, serving
from tests.tokenizer import byte_tokenizer


def test_a_conversation_goes_in_and_text_comes_out() -> None:
    with serving(Reply(completion("hello"), chunked=True)) as server:
        assert ask(server) == Generation([UNKNOWN] * 3, [0.0] * 3, "m-2026", "stop", "hello")
    assert server.paths == ["/v1/chat/completions"]
    assert "Authorization" not in server.heads[0]
    assert server.bodies[0] == {
        "model": "m",
        "temperature": 0.7,
        "top_p": 1.0,
        "max_tokens": 48,
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": "u"},
            {"role": "assistant", "content": "<think>earlier</think>\n<code>1</code>"},
            {"role": "user", "content": "<output>[image 4x4]</output>\nbudget"},
        ],
    }


def test_what_is_no_picture_is_not_sent_as_one() -> None:
    (message,) = chat_messages([Message("user", "[image]", images=(b"\x89PNG no picture",))], True, "tag")
    assert message == {"role": "user", "content": "[image]"}


def test_a_model_that_sees_gets_pictures() -> None:
    with serving(Reply(completion("hello"))) as server:
        ask(server, sees_images=True, seeded=True)
    text, picture = server.bodies[0]["messages"][-1]["content"]
    assert text == {"type": "text", "text": "<output>[image 4x4]</output>\nbudget"}
    assert picture["image_url"]["url"] == f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
    assert server.bodies[0]["seed"] == 5


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_is_the_thinking_where_it_is_native(field: str) -> None:
    with serving(Reply(completion("<code>1</code>", **{field: "hm"}))) as server:
        assert ask(server, "native").text == "<think>hm</think>\n<code>1</code>"
        assert ask(server, "tag").text == "<code>1</code>"
    assert server.bodies[0]["messages"][2]["content"] == "<code>1</code>"
    assert server.bodies[1]["messages"][2]["content"].startswith("<think>earlier")


@pytest.mark.parametrize(
    ("content", "message", "think"),
    [
        ("<code>1</code>", {}, ""),
        ("<code>1</code>", {"reasoning_content": None, "reasoning": ""}, ""),
        (
            [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "<code>1</code>"}],
            {},
            "hm",
        ),
        ([{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "<code>1</code>"}], {}, "hm"),
        ("<think>hm</think><code>1</code>", {"reasoning": "hm"}, "hm"),
        ("hm</think>\n<code>1</code>", {}, "hm"),
        ("<code>'</think>'</code>", {"reasoning": "<think>hm</think>"}, "hm"),
    ],
)
def test_native_thinking_may_be_hidden_repeated_or_in_parts(content: Any, message: dict[str, Any], think: str) -> None:
    with serving(Reply(completion(content, **message))) as server:
        action = Grammar(thinking="native").parse(ask(server, "native").text or "")
    assert isinstance(action, Action)
    assert action.think == think


@pytest.mark.parametrize(
    ("finish", "expected"),
    [("stop", "stop"), ("length", "length"), ("max_tokens", "length"), ("content_filter", "stop"), ("tool_calls", "stop")],
)
def test_finish_reasons(finish: str, expected: str) -> None:
    with serving(Reply(completion(None, finish))) as server:
        assert (ask(server).finish, ask(server).text) == (expected, "")


def test_without_usage_tokens_are_estimated_and_parts_of_text_are_joined() -> None:
    reply = completion([{"type": "text", "text": "hell"}, {"type": "text", "text": "o world"}])
    del reply["usage"], reply["model"]
    with serving(Reply(reply)) as server:
        assert ask(server) == Generation([UNKNOWN] * 3, [0.0] * 3, "m", "stop", "hello world")


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504, 520, 522, 524, 529, 530])
def test_passing_faults_are_tried_again(status: int) -> None:
    busy = Reply({"error": "busy"}, status, {"Retry-After": "0"})
    with serving(busy, Reply(close="before"), Reply(completion("hello"))) as server:
        assert ask(server).text == "hello"
        assert len(server.bodies) == 3


@pytest.mark.parametrize(
    "fault",
    [
        {"error": {"message": "upstream failed", "code": 502}},
        {"error": {"message": "slow down", "code": "429"}, "choices": None},
        {"error": "overloaded"},
        {"choices": []},
        {"choices": [{"finish_reason": "error", "error": {"message": "lost"}, "message": {"content": "hel"}}]},
        *(completion("hel", finish) for finish in BROKEN),
    ],
)
def test_a_passing_fault_may_come_with_status_200(fault: dict[str, Any]) -> None:
    told: list[str] = []
    with serving(Reply(fault, 200, {"Retry-After": "0"}), Reply(completion("hello"))) as server:
        assert ask(server, report=told.append).text == "hello"
    named = isinstance(fault.get("error"), dict)
    assert ("answered 200 with the error" if named else "answered 200 with ") in told[0]
    assert named or "502" not in told[0]


def test_a_lasting_fault_with_status_200_is_final() -> None:
    with serving(Reply({"error": {"message": "unknown model", "code": 404}})) as server:
        with pytest.raises(PolicyError, match=r"answered 200 with the error 404 .*unknown model"):
            ask(server)
        assert len(server.bodies) == 2  # one with another conversation


def test_each_further_try_is_told_before_it_is_waited_for() -> None:
    told: list[str] = []
    busy = Reply({"error": "busy sk-1"}, 429, {"Retry-After": "0"})
    with serving(busy, Reply(close="before"), Reply(completion("hello"))) as server:
        ask(server, report=told.append)
    first, second = told
    assert first == "the model server answered 429; trying again in 0.0 s (2 of 6)"
    assert second.startswith("the model server did not answer: RemoteProtocolError; trying again in ")
    assert second.endswith(" s (3 of 6)")


def test_a_spent_budget_of_tries_is_a_policy_error() -> None:
    with serving(Reply({"error": {"message": "slow down"}}, 429, {"Retry-After": "0"})) as server:
        with pytest.raises(PolicyError, match=r"v1/chat/completions answered 429 .*slow down.* \(tried 6 times\); ask less"):
            ask(server)
        assert len(server.bodies) == 6


def test_a_server_that_asks_for_too_long_a_wait_is_given_up() -> None:
    with serving(Reply("", 503, {"Retry-After": "3600"})) as server:
        with pytest.raises(PolicyError, match="answered 503"):
            ask(server)
        assert len(server.bodies) == 1


def test_a_silent_server_is_a_policy_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nbrl.agent.policies.chat.RETRIES", 0)
    with serving(Hold()) as server, pytest.raises(PolicyError, match="did not answer: ReadTimeout"):
        ask(server, timeout=0.2)


@pytest.mark.parametrize("content", ["<html>", {}, {"choices": [{"message": None}]}, [], {"choices": "abc"}])
def test_nonsense_is_a_policy_error(content: Any) -> None:
    with serving(Reply(content)) as server, pytest.raises(PolicyError, match="no chat completion"):
        ask(server)


@pytest.mark.parametrize("count", [10**15, -5, float("inf"), float("nan"), "many", [], True])
def test_a_count_of_tokens_that_cannot_be_is_estimated(count: Any) -> None:
    reply = completion("hello") | {"usage": {"completion_tokens": count}, "model": "half \ud800"}
    with serving(Reply(reply)) as server:
        generation = ask(server)
    assert 0 < len(generation.token_ids) < 3
    assert generation.weights_version == "half ?"


def test_an_answer_nested_too_deep_or_too_large_is_a_policy_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(Reply("[" * 200_000)) as server, pytest.raises(PolicyError, match="no chat completion"):
        ask(server)
    monkeypatch.setattr("nbrl.agent.policies.chat.ANSWER_BYTES", 5_000)
    with serving(Reply(completion("x" * 9_000))) as server, pytest.raises(PolicyError, match="larger than 5000 bytes"):
        ask(server)


PLAIN = "a <| b |> c < s> <p> </div> <h1> <sub> a[0] [x] [1, 2] x<y>z <T> vec<int> List[int] [INSTALL] <start> <end> (a |> f)"


@pytest.mark.parametrize(
    "mark",
    [
        *("<|im_end|>", "<|eot_id|>", "<｜end▁of▁sentence｜>", "<｜User｜>", "</s>", "<s>", "<end_of_turn>", "<start_of_image>"),
        *("<eos>", "<bos>", "<pad>", "<unk>", "<eop>", "<sop>", "<mask>", "<|turn>", "<turn|>", "<|channel>", "<extra_id_1>"),
        *("<unused12>", "<SPECIAL_12>", "<reserved_7>", "<seed:eos>", "<seed:tool_call>", "<end_of_utterance>", "<<SYS>>"),
        *("<eod>", "<|begin of text|>", "<tool_call>", "</tool_response>", "[e~[", "]~b]"),
        *("[INST]", "[/INST]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"),
        *("[AVAILABLE_TOOLS]", "[gMASK]", "[sMASK]", "[SEP]", "[IMG]", "[IMG_END]", "[THINK]", "[/THINK]", "[ARGS]", "[CALL_ID]"),
    ],
)
@pytest.mark.attack(
    tried="A page, a file or an output that ends a turn, by the marks of a model's family",
    wall="a space in each mark; token ids, where the engine takes them",
    effect="it is read as text",
)
def test_marks_of_a_turn_are_set_apart_in_what_was_not_sampled(mark: str) -> None:
    said = [
        Message("system", mark),
        Message("user", f"a{mark}b"),
        Message("assistant", mark),
        Message("user", PLAIN),
    ]
    shown = [message["content"] for message in chat_messages(said, False, "tag")]
    assert shown == [f"{mark[0]} {mark[1:]}", f"a{mark[0]} {mark[1:]}b", mark, PLAIN]


def test_an_aborted_generation_is_a_policy_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nbrl.agent.policies.chat.RETRIES", 0)
    with serving(Reply(completion("hel", "abort"))) as server, pytest.raises(PolicyError, match="'abort'"):
        ask(server)


@pytest.mark.parametrize("endpoint", ["localhost:80", "ftp://host/v1", "https://me:secret@host/v1", "", "http://host:port"])
def test_an_endpoint_that_is_no_address_is_refused(endpoint: str) -> None:
    with pytest.raises(ValidationError, match="address") as caught:
        ChatSettings(endpoint=endpoint, model="m")
    assert "secret" not in str(caught.value)


NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, None),
        ("2.5", 2.5),
        ("-3", 0.0),
        ("soon", None),
        ("Thu, 01 Jan 2026 00:00:10 GMT", 10.0),
        ("Wed, 31 Dec 2025 00:00:00 GMT", 0.0),
    ],
)
def test_retry_after_is_read(header: str | None, seconds: float | None) -> None:
    assert retry_after(header, NOW) == seconds


@given(st.integers(0, 20), st.floats(0.1, 100), st.lists(st.none() | st.floats(), max_size=30))
def test_waits_stay_within_their_budget(retries: int, longest: float, wanted: list[float | None]) -> None:
    retry = Retry(retries, longest, lambda: 0.5)
    waits = [wait for wish in wanted if (wait := retry.next_wait(None if wish is None else max(0.0, wish))) is not None]
    assert len(waits) <= retries
    assert all(0 <= wait <= longest for wait in waits)


def test_an_episode_of_a_hosted_reasoning_model() -> None:
    replies = [
        completion("```python\nx = 6 * 7\nx\n```", reasoning_content="I could write ```python\n```"),
        completion("```python\nsubmit_final_answer(x)\n```", reasoning_content="done"),
    ]

    async def run(server: Server) -> Trajectory:
        task = Task(id="q-0", group="q", sample=0, question="6 * 7?", ability="arithmetic", seed=1)
        settings = AgentSettings(thinking="native", code_style="fence")
        toolbox = Toolbox([])
        async with httpx.AsyncClient(trust_env=False) as client:
            policy = ChatPolicy(client, ChatSettings(endpoint=server.url, model="m"), Sampling(), settings.thinking)
            kernel = InlineKernel(prelude([]), toolbox.call)
            return await Episode(task, policy, kernel, toolbox, EstimatingRenderer(), settings).run()

    with serving(*map(Reply, replies)) as server:
        trajectory = asyncio.run(run(server))
    assert (trajectory.status, trajectory.answer) == (Status.ANSWERED, "42")
    assert trajectory.steps[0].think == "I could write ```python\n```"
    assert set(trajectory.sampled()[0].token_ids) == {UNKNOWN}
    assert [message["role"] for message in server.bodies[1]["messages"]] == ["system", "user", "assistant", "user"]


def test_a_scripted_policy_plays_a_list_and_repeats_its_last() -> None:
    tokenizer = byte_tokenizer()
    policy = ScriptedPolicy(["one", "two"], tokenizer)
    played = [asyncio.run(policy.generate(PROMPT, 48, 0)) for _ in range(3)]
    assert [tokenizer.decode(generation.token_ids) for generation in played] == ["one", "two", "two"]
