"""A conversation of every kind of message, and what a chat server answers to it."""

import asyncio
from collections.abc import Callable
from typing import Any

import httpx

from nbrl.agent.grammar import Thinking
from nbrl.agent.messages import Message, Prompt
from nbrl.agent.policies.chat import ChatPolicy
from nbrl.agent.policies.settings import ChatSettings
from nbrl.agent.policy import Generation, Sampling
from nbrl.agent.tokens.tokenizer import UNKNOWN
from tests.chat_server import Server

KEY = "sk-very-secret"
PNG = b"\x89PNG\r\n\x1a\n picture"
PROMPT = Prompt(
    [[UNKNOWN] * 9],
    [
        Message("system", "s"),
        Message("user", "u"),
        Message("assistant", "<think>earlier</think>\n<code>1</code>"),
        Message("user", "<output>[image 4x4]</output>", (PNG,)),
        Message("user", "budget"),
    ],
)


def completion(content: Any, finish: str = "stop", **message: Any) -> dict[str, Any]:
    choice = {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": content, **message}}
    return {"id": "1", "model": "m-2026", "choices": [choice], "usage": {"prompt_tokens": 9, "completion_tokens": 3}}


def ask(
    server: Server,
    thinking: Thinking = "tag",
    timeout: float = 30,
    report: Callable[[str], None] = print,
    key: str = "",
    firm: bool = True,
    **settings: Any,
) -> Generation:
    async def run() -> Generation:
        chosen = ChatSettings(endpoint=f"{server.url}/v1/", model="m", **settings)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        async with httpx.AsyncClient(headers=headers, timeout=timeout, trust_env=False) as client:
            policy = ChatPolicy(client, chosen, Sampling(temperature=0.7), thinking, report, firm=firm)
            return await policy.generate(PROMPT, 48, seed=5)

    return asyncio.run(run())
