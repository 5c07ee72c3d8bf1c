"""CPU of one generation on the host's side: our SGLang policy, against the same request through httpx, and JSON alone.

The engine is a stand-in in a process of its own that answers every request alike after 10 ms. Measured alternately.
"""

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable

import httpx

from nbrl.agent.messages import Prompt
from nbrl.agent.policies.sglang import SglangPolicy, engine_session
from nbrl.agent.policy import Sampling

_PROMPT = Prompt([range(1500)], [])
_TOKENS = 200
_REPLY = json.dumps(
    {
        "meta_info": {
            "finish_reason": {"type": "stop"},
            "weight_version": "1",
            "output_token_logprobs": [[-0.123456789 * number, number, None] for number in range(_TOKENS)],
        }
    }
)
_SERVER = """
import asyncio, sys
reply = sys.stdin.buffer.readline().strip()
async def serve(reader, writer):
    try:
        while True:
            head = (await reader.readuntil(b"\\r\\n\\r\\n")).lower()
            await reader.readexactly(int(head.split(b"content-length:")[1].split(b"\\r\\n")[0]))
            await asyncio.sleep(0.01)
            writer.write(b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n%s" % (len(reply), reply))
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()
async def main():
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"""
_BODY = {
    "input_ids": _PROMPT.token_ids,
    "return_logprob": True,
    "sampling_params": {"temperature": 1.0, "top_p": 1.0, "max_new_tokens": 256, "stop_token_ids": [2]},
}

Ask = Callable[[], Awaitable[object]]


def _parse(reply: bytes | str) -> list[float]:
    return [float(entry[0]) for entry in json.loads(reply)["meta_info"]["output_token_logprobs"]]


async def _crowd(ask: Ask, generations: int, at_once: int) -> None:
    turns = iter(range(generations))

    async def one() -> None:
        for _ in turns:
            await ask()

    await asyncio.gather(*(one() for _ in range(at_once)))


async def ours(url: str, generations: int, at_once: int) -> None:
    async with engine_session(60) as session:
        policy = SglangPolicy(session, url, [2], Sampling())
        await _crowd(lambda: policy.generate(_PROMPT, 256, 0), generations, at_once)


async def by_httpx(url: str, generations: int, at_once: int) -> None:
    limits = httpx.Limits(max_connections=None, keepalive_expiry=2.0)
    async with httpx.AsyncClient(timeout=60, limits=limits, trust_env=False) as client:

        async def ask() -> None:
            _parse((await client.post(f"{url}/generate", json=_BODY)).content)

        await _crowd(ask, generations, at_once)


async def json_alone(url: str, generations: int, at_once: int) -> None:
    async def ask() -> None:
        json.dumps(_BODY)
        _parse(_REPLY)

    await _crowd(ask, generations, at_once)


def measure(url: str, generations: int, at_once: int, rounds: int) -> dict[str, float]:
    """Median CPU milliseconds of a generation, by client."""
    spent: dict[str, list[float]] = {}
    for _ in range(rounds):
        for way in (ours, by_httpx, json_alone):
            began = time.process_time()
            asyncio.run(way(url, generations, at_once))
            spent.setdefault(way.__name__, []).append((time.process_time() - began) / generations * 1000)
    return {name: round(statistics.median(values), 3) for name, values in spent.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--generations", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    server = subprocess.Popen([sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(_REPLY + "\n")
        server.stdin.flush()
        url = f"http://127.0.0.1:{server.stdout.readline().strip()}"
        figures = {f"at_once_{n}": measure(url, options.generations, n, options.rounds) for n in (16, 64)}
    finally:
        server.terminate()
        server.wait()
    print(json.dumps({"benchmark": "engine_client", "unit": "cpu ms a generation", **figures}))


if __name__ == "__main__":
    main()
