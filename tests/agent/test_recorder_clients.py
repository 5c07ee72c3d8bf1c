"""The package openai as a client of the recording server: chat completions and responses, at once and in streams."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
from openai import AsyncOpenAI, BadRequestError
from openai.types.responses import ResponseCompletedEvent, ResponseTextDeltaEvent

from nbrl.agent.recorder.recorder import Recorder
from nbrl.agent.recorder.server import RecordingServer
from nbrl.agent.recorder.tool_server import ToolServer
from nbrl.agent.settings import AgentSettings
from nbrl.agent.tokens.conversation import Conversations
from nbrl.agent.tokens.rendering import rendering
from nbrl.agent.tokens.tokenizer import ChatTokenizer
from nbrl.agent.tools.base import Toolbox
from tests.agent.families import FAMILIES, write_folder
from tests.agent.test_recorder import Engine, assert_exact

pytestmark = pytest.mark.process  # the package asks `uname` for the name of the machine
SETTINGS = AgentSettings(max_steps=40, context_tokens=4000, action_tokens=200)
PARAMETERS = {"type": "object", "properties": {"at": {"type": "integer"}}}
CALL = '<tool_call>{"name": "look",  "arguments": {"at": 1}}</tool_call>'


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Conversations]:
    folder = write_folder(tmp_path_factory.mktemp("family") / "qwen3", FAMILIES["qwen3"])
    with rendering():
        yield Conversations.load(ChatTokenizer.load(folder), AgentSettings())


async def parsed(text: str, tools: Sequence[Any]) -> tuple[str, list[dict[str, Any]]]:
    return text.replace(CALL, "").strip(), [{"name": "look", "arguments": '{"at": 1}'}] if CALL in text else []


def served(qwen: Conversations, says: Sequence[str], test: Callable[[AsyncOpenAI], Awaitable[None]]) -> tuple[Recorder, Engine]:
    """Run a test against a server whose policy says these texts in turn."""
    ids = [[*qwen.tokenizer.whole(text), qwen.tokenizer.end_id] for text in says]
    engine = Engine(lambda number, _: ids[number % len(ids)])
    recorder = Recorder(qwen, engine, SETTINGS, 0, parsed)

    async def run() -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        async with RecordingServer().running() as server, server.listening(listener):
            with server.recording(recorder, ToolServer(Toolbox([]), 1.0, 1)) as path:
                address = f"http://127.0.0.1:{listener.getsockname()[1]}{path}/v1"
                async with AsyncOpenAI(base_url=address, api_key="none", max_retries=0) as client:
                    await asyncio.wait_for(test(client), 60)

    asyncio.run(run())
    assert_exact(recorder, engine)
    return recorder, engine


def grows(engine: Engine) -> bool:
    """Return whether each prompt begins with the one before and what was sampled after it."""
    calls = engine.calls
    return all(later[: len(ids + said)] == ids + said for (ids, said), (later, _) in pairwise(calls))


def test_a_conversation_of_responses_is_one_path(qwen: Conversations) -> None:
    async def test(client: AsyncOpenAI) -> None:
        items: list[Any] = [{"role": "user", "content": "What is on the table?"}]
        tools: Any = [{"type": "function", "name": "look", "parameters": PARAMETERS, "strict": False}]
        first = await client.responses.create(model="policy", instructions="Be brief.", input=items, tools=tools)
        (call,) = (item for item in first.output if item.type == "function_call")
        assert (call.name, call.arguments, first.status) == ("look", '{"at": 1}', "completed")
        assert [item.type for item in first.output] == ["message", "function_call"]
        items += [item.model_dump(exclude_none=True) for item in first.output]
        items.append({"type": "function_call_output", "call_id": call.call_id, "output": "a lamp"})
        second = await client.responses.create(model="policy", instructions="Be brief.", input=items, tools=tools)
        assert second.output_text == "A lamp."
        assert second.usage is not None
        assert second.usage.total_tokens == second.usage.input_tokens + second.usage.output_tokens

    recorder, engine = served(qwen, [f"I look. {CALL}", "A lamp."], test)
    assert grows(engine)
    assert recorder.again == 0


def test_a_stream_of_responses_says_the_same(qwen: Conversations) -> None:
    async def test(client: AsyncOpenAI) -> None:
        tools: Any = [{"type": "function", "name": "look", "parameters": PARAMETERS, "strict": False}]
        deltas, numbers, last = "", list[int](), None
        stream = await client.responses.create(model="policy", input="What is on the table?", tools=tools, stream=True)
        async for event in stream:
            numbers.append(event.sequence_number)
            deltas += event.delta if isinstance(event, ResponseTextDeltaEvent) else ""
            last = event
        assert isinstance(last, ResponseCompletedEvent)
        assert deltas == last.response.output_text == "I look."
        assert [item.type for item in last.response.output] == ["message", "function_call"]
        assert numbers == list(range(len(numbers)))

    served(qwen, [f"I look. {CALL}"], test)


def test_a_thought_comes_and_goes_back_as_an_item_of_its_own(qwen: Conversations) -> None:
    async def test(client: AsyncOpenAI) -> None:
        first = await client.responses.create(model="policy", input="How many?", max_output_tokens=100)
        assert [item.type for item in first.output] == ["reasoning", "message"]
        items: list[Any] = [{"role": "user", "content": "How many?"}]
        items += [item.model_dump(exclude_none=True) for item in first.output]
        await client.responses.create(model="policy", input=[*items, {"role": "user", "content": "Sure?"}])

    recorder, _ = served(qwen, ["<think>\nI count.\n</think>\n\nFour."], test)
    assert (recorder.steps[0].think, recorder.steps[0].code) == ("I count.", "Four.")


@pytest.mark.parametrize(
    "more",
    [
        {"previous_response_id": "resp_0"}, {"background": True}, {"tools": [{"type": "web_search"}]},
        {"text": {"format": {"type": "json_object"}}}, {"input": [{"type": "item_reference", "id": "x"}]},
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x", "detail": "auto"}]}]},
        {"tool_choice": "required"},
    ],
)  # fmt: skip
def test_responses_that_cannot_be_had_are_refused(qwen: Conversations, more: dict[str, Any]) -> None:
    async def test(client: AsyncOpenAI) -> None:
        with pytest.raises(BadRequestError):
            await client.responses.create(**{"model": "policy", "input": "x", **more})

    _, engine = served(qwen, ["yes"], test)
    assert engine.calls == []


def test_chat_completions_are_read_by_their_own_package(qwen: Conversations) -> None:
    async def test(client: AsyncOpenAI) -> None:
        tools: Any = [{"type": "function", "function": {"name": "look", "parameters": PARAMETERS}}]
        chat: list[Any] = [{"role": "user", "content": "What is on the table?"}]
        said = (await client.chat.completions.create(model="policy", messages=chat, tools=tools)).choices[0].message
        assert said.tool_calls is not None
        chat += [said.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": "a lamp"}]
        text = ""
        async for chunk in await client.chat.completions.create(model="policy", messages=chat, tools=tools, stream=True):
            text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
        assert text == "A lamp."
        assert [each.id async for each in client.models.list()] == ["policy"]

    _, engine = served(qwen, [f"I look. {CALL}", "A lamp."], test)
    assert grows(engine)
