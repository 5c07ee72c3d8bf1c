"""The agent's policies against a real SGLang server of the shipped policy: in token ids, and through its chat API."""

import asyncio
from pathlib import Path

import httpx
import pytest

from nbrl.agent.messages import Message, Prompt
from nbrl.agent.policies.chat import ChatPolicy
from nbrl.agent.policies.settings import ChatSettings
from nbrl.agent.policies.sglang import SglangPolicy, engine_session
from nbrl.agent.policy import Generation, Sampling
from nbrl.agent.tokens.tokenizer import UNKNOWN, ChatTokenizer
from nbrl.infra.engine.server import EngineServer
from nbrl.infra.engine.settings import headers
from nbrl.tasks.runs.recipes import load

pytestmark = pytest.mark.more

TINY_AGENT = load("tiny-cpu").agent
TINY = Path(__file__).parents[2] / "infra" / "policies" / "tiny"
TURNS = [
    Message("system", TINY_AGENT.render_system_prompt("").text),
    Message("user", "What is 6 * 7?\n<budget>steps 4, tokens 100</budget>"),
]
GREEDY = Sampling(temperature=0)
ROOM = 48


def test_ids_and_chat_lead_to_the_same_action(tiny_engine: EngineServer) -> None:
    tokenizer = ChatTokenizer.load(TINY)
    ids = [token for turn in TURNS for token in tokenizer.message(turn.role, turn.text)] + tokenizer.generation_prompt()

    async def ask() -> tuple[list[Generation], Generation]:
        key = headers(tiny_engine.key)
        async with engine_session(60, key) as session, httpx.AsyncClient(timeout=60, trust_env=False, headers=key) as client:
            sglang = SglangPolicy(session, tiny_engine.url, tokenizer.stop_ids, GREEDY)
            chat = ChatPolicy(client, ChatSettings(endpoint=f"{tiny_engine.url}/v1", model="tiny", seeded=True), GREEDY)
            sampled = await asyncio.gather(*(sglang.generate(Prompt([ids], TURNS), ROOM, seed) for seed in range(8)))
            return sampled, await chat.generate(Prompt([[UNKNOWN]], TURNS), ROOM, 0)

    sampled, said = asyncio.run(ask())
    first = sampled[0]
    assert first.finish == said.finish == "stop"
    assert first.token_ids[-1] == tokenizer.end_id
    assert len(first.logprobs) == len(first.token_ids) == len(said.token_ids)
    assert all(generation.token_ids == first.token_ids for generation in sampled)
    assert said.text == tokenizer.decode(first.token_ids)
    assert said.text.startswith("<think>")
    assert set(said.token_ids) == {UNKNOWN}


def test_a_text_that_ends_an_answer_is_found_among_the_tokens(tiny_engine: EngineServer) -> None:
    tokenizer = ChatTokenizer.load(TINY)
    ids = [token for turn in TURNS for token in tokenizer.message(turn.role, turn.text)] + tokenizer.generation_prompt()

    async def ask() -> Generation:
        async with engine_session(60, headers(tiny_engine.key)) as session:
            policy = SglangPolicy(session, tiny_engine.url, tokenizer.stop_ids, GREEDY)
            return await policy.generate(Prompt([ids], TURNS, ("</think>",)), ROOM, 0)

    stopped = asyncio.run(ask())
    assert stopped.finish == "stop"
    assert tokenizer.decode(stopped.token_ids).endswith("</think>")
    assert len(stopped.logprobs) == len(stopped.token_ids)
