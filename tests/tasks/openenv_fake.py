"""A server that speaks OpenEnv's protocol: a game of guessing, and any fault. Usage: python openenv_fake.py PORT."""

import asyncio
import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import WSMsgType, web

GUESS = {
    "title": "GuessAction",
    "description": "Guesses the number.\n\nIt is from 0 to 9.",
    "type": "object",
    "properties": {
        "metadata": {"type": "object"},
        "number": {"type": "integer", "description": "what it may be"},
    },
    "required": ["number"],
    "additionalProperties": False,
}
GIVE_UP = {"title": "GiveUpAction", "type": "object", "properties": {"kind": {"const": "give_up"}}}
SCHEMA = {
    "action": {"$defs": {"Guess": GUESS, "GiveUp": GIVE_UP}, "oneOf": [{"$ref": "#/$defs/Guess"}, {"$ref": "#/$defs/GiveUp"}]},
    "observation": {"type": "object", "properties": {"hint": {"type": "string", "description": "where it is"}, "done": {}}},
}
Reply = Callable[[dict[str, Any]], Any]
"""What a message is answered with: JSON, a text as it is, or None for a connection that ends."""


def game() -> Reply:
    """One episode. An observation has rewards of its own, which count for nothing."""
    secret = [0]

    def reply(message: dict[str, Any]) -> Any:
        data = message.get("data", {})
        if message["type"] == "state":
            return {"type": "state", "data": {"secret": secret[0]}}
        if message["type"] == "reset":
            secret[0] = data.get("seed", 0) % 10
            return seen("guess", None, False)
        if "kind" in data:
            return seen("a pity", -1.0, True)
        if data["number"] == secret[0]:
            return seen("right", 2.0, True)
        return seen("higher" if data["number"] < secret[0] else "lower", 0.25, False)

    return reply


def seen(hint: str, reward: Any, done: bool) -> dict[str, Any]:
    forged = {"reward": 99.0, "metadata": {"reward": 99.0}}
    return {"type": "observation", "data": {"observation": {"hint": hint, **forged}, "reward": reward, "done": done}}


def application(new: Callable[[], Reply], schema: Any) -> web.Application:
    async def socket(request: web.Request) -> web.WebSocketResponse:
        answer = web.WebSocketResponse(max_msg_size=0)
        await answer.prepare(request)
        reply = new()
        async for message in answer:
            asked = json.loads(message.data) if message.type is WSMsgType.TEXT else {"type": "close"}
            said = None if asked["type"] == "close" else await asyncio.to_thread(reply, asked)
            if said is None:
                break
            await answer.send_str(said if isinstance(said, str) else json.dumps(said))
        await answer.close()
        return answer

    async def schemas(request: web.Request) -> web.StreamResponse:
        return web.Response(text=schema) if isinstance(schema, str) else web.json_response(schema)

    async def metadata(request: web.Request) -> web.Response:
        return web.json_response({"name": "guess", "description": "Find the number."})

    async def health(request: web.Request) -> web.Response:
        return web.json_response({"status": "healthy"})

    made = web.Application()
    made.router.add_get("/ws", socket)
    made.router.add_get("/schema", schemas)
    made.router.add_get("/metadata", metadata)
    made.router.add_get("/health", health)
    return made


@contextmanager
def serving(new: Callable[[], Reply] = game, schema: Any = SCHEMA) -> Iterator[str]:
    """Yield the address of a server, which ends with the block."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def start() -> tuple[web.AppRunner, int]:
        runner = web.AppRunner(application(new, schema), shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return runner, runner.addresses[0][1]

    runner, port = asyncio.run_coroutine_threadsafe(start(), loop).result()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


if __name__ == "__main__":
    web.run_app(application(game, SCHEMA), host="127.0.0.1", port=int(sys.argv[1]))
