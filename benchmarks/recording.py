"""What does recording cost? The same conversations by the recording endpoint and by the engine's own chat endpoint.

Usage: python benchmarks/recording.py [--requests 200] [--rounds 5] [--at-once 8]

A real SGLang server of the shipped tiny policy answers with at most 8 tokens. A request holds a conversation of 1 to 6 turns that
grew by the answers before. Both ways take turns in one process, by the same client, `rounds` times each. `processor_ms_added` is
the processor time of a request in this process, and in the one that renders templates: with recording, less that without, at
most 2. What both spend in the client is in neither.

One JSON line for each way, with medians over the rounds; the last one has the difference.
"""

import argparse
import asyncio
import json
import os
import socket
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
from hardware import cpu_machine

from nbrl.agent.policies.sglang import SglangPolicy, engine_session
from nbrl.agent.policy import Sampling
from nbrl.agent.recorder.recorder import Recorder
from nbrl.agent.recorder.server import RecordingServer
from nbrl.agent.recorder.tool_server import ToolServer
from nbrl.agent.settings import AgentSettings
from nbrl.agent.tokens.conversation import Conversations
from nbrl.agent.tokens.rendering import rendering
from nbrl.agent.tokens.tokenizer import ChatTokenizer
from nbrl.agent.tools.base import Toolbox
from nbrl.infra.engine import server as engine_server
from nbrl.infra.engine.command import Door
from nbrl.infra.engine.settings import EngineSettings, headers

TINY = Path(__file__).resolve().parents[1] / "infra/policies/tiny"
TURNS, TOKENS, LIMIT_MS = 6, 8, 2.0
SETTINGS = AgentSettings(kind="program", command=("none",), max_steps=1000, context_tokens=2048, action_tokens=TOKENS)
Ask = Callable[[list[dict[str, Any]]], Awaitable[dict[str, Any]]]


def spent() -> float:
    """Return the processor seconds of this process, and of the one that renders templates."""
    children = [each for each in psutil.Process().children() if "render.py" in " ".join(each.cmdline())]
    return time.process_time() + sum(sum(each.cpu_times()[:2]) for each in children)


async def conversations(ask: Ask, count: int, at_once: int) -> tuple[float, float]:
    """Return wall and processor seconds of so many requests, in conversations that grow."""
    left = iter(range(count))

    async def one() -> None:
        chat: list[dict[str, Any]] = []
        for number in left:
            if len(chat) >= 2 * TURNS:
                chat = []
            chat.append({"role": "user", "content": f"How much is {number} and {number}?"})
            chat.append(await ask(chat))

    wall, processor = time.perf_counter(), spent()
    await asyncio.gather(*(one() for _ in range(at_once)))
    return time.perf_counter() - wall, spent() - processor


async def measured(arguments: argparse.Namespace, engine: engine_server.EngineServer) -> None:
    tokenizer = ChatTokenizer.load(TINY)
    templates = Conversations.load(tokenizer, SETTINGS)
    key = headers(engine.key)
    listener = socket.create_server(("127.0.0.1", 0))
    async with engine_session(60, key) as session, RecordingServer().running() as server, server.listening(listener):
        policy = SglangPolicy(session, engine.url, tokenizer.stop_ids, Sampling())
        async with httpx.AsyncClient(timeout=60, trust_env=False, headers=key) as client:

            def by(address: str) -> Ask:
                async def ask(chat: list[dict[str, Any]]) -> dict[str, Any]:
                    body = {"model": "tiny", "messages": chat, "max_tokens": TOKENS}
                    answer = await client.post(f"{address}/v1/chat/completions", json=body)
                    message = answer.raise_for_status().json()["choices"][0]["message"]
                    return {"role": "assistant", "content": message["content"] or ""}

                return ask

            found: dict[str, list[tuple[float, float]]] = {"engine": [], "recorded": []}
            for _ in range(arguments.rounds):
                found["engine"].append(await conversations(by(engine.url), arguments.requests, arguments.at_once))
                recorder = Recorder(templates, policy, SETTINGS, 0)
                with server.recording(recorder, ToolServer(Toolbox([]), 30.0, 0)) as path:
                    address = f"http://127.0.0.1:{listener.getsockname()[1]}{path}"
                    found["recorded"].append(await conversations(by(address), arguments.requests, arguments.at_once))
    medians = {way: [statistics.median(each) for each in zip(*rounds, strict=True)] for way, rounds in found.items()}
    about = {"requests": arguments.requests, "at_once": arguments.at_once, "rounds": arguments.rounds, "hardware": cpu_machine()}
    for way, (wall, processor) in medians.items():
        per_request = {"requests_per_s": arguments.requests / wall, "processor_ms": 1000 * processor / arguments.requests}
        print(json.dumps({"way": way, **{name: round(value, 3) for name, value in per_request.items()}}))
    added = [1000 * (mine - its) / arguments.requests for mine, its in zip(medians["recorded"], medians["engine"], strict=True)]
    print(json.dumps({"wall_ms_added": round(added[0], 3), "processor_ms_added": round(added[1], 3), "limit": LIMIT_MS, **about}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--at-once", type=int, default=8)
    arguments = parser.parse_args()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    with tempfile.TemporaryDirectory() as logs, rendering():
        settings = EngineSettings(device="cpu", max_total_tokens=32768, request_timeout_s=60)
        (engine,) = engine_server.wait([engine_server.launch(settings, TINY, Path(logs), door=Door(stops=True))])
        try:
            asyncio.run(measured(arguments, engine))
        finally:
            engine.stop()


if __name__ == "__main__":
    main()
