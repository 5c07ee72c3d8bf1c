"""Tokens a second that engines on the CPU sample with a model, many at once: float32 and bfloat16, one engine and two.

Usage: python benchmarks/decode.py MODEL_FOLDER [--rounds 2] [--at-once 8,16,32,64] [--tokens 96]

The variants take turns: in each round every one is started, asked once without being measured, measured at each number of
requests at once, and ended. A request has a prompt of 231 tokens, 187 of which all share, and samples with log-probabilities and
a seed of its own. Two engines share the requests. The last line is one JSON object with the median of the rounds.
"""

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from pathlib import Path

from hardware import cpu_machine

from nbrl.agent.messages import Prompt
from nbrl.agent.policies.sglang import SglangPolicy, engine_session
from nbrl.agent.policy import Sampling
from nbrl.infra.engine.server import EngineServer, launch, wait
from nbrl.infra.engine.settings import EngineSettings

SHARED, PROMPT = 187, 231
VARIANTS = [(dtype, count) for dtype in ("float32", "bfloat16") for count in (1, 2)]
FIRST_ID, LAST_ID = 1_000, 40_000  # ordinary tokens of SmolLM2's vocabulary


async def speed(servers: list[EngineServer], at_once: int, tokens: int, seed: int) -> float:
    """Tokens a second from the first request to the last reply."""
    rng = random.Random(seed)
    shared = [rng.randint(FIRST_ID, LAST_ID) for _ in range(SHARED)]
    own = [[rng.randint(FIRST_ID, LAST_ID) for _ in range(PROMPT - SHARED)] for _ in range(at_once)]
    async with engine_session(600) as session:
        policies = [SglangPolicy(session, server.client().url, [], Sampling(), seeded=True) for server in servers]
        started = time.monotonic()
        asked = (
            policies[number % len(policies)].generate(Prompt([shared, rest], []), tokens, number)
            for number, rest in enumerate(own)
        )
        sampled = sum(len(each.token_ids) for each in await asyncio.gather(*asked))
        return sampled / (time.monotonic() - started)


def measure(model: Path, dtype: str, count: int, at_once: list[int], tokens: int, round_: int) -> list[float]:
    settings = EngineSettings.model_validate(
        {"device": "cpu", "dtype": dtype, "count": count, "max_total_tokens": 32_768, "seeded_sampling": True}
    )
    with tempfile.TemporaryDirectory() as logs:
        servers: list[EngineServer] = []
        try:
            for number in range(count):
                servers.append(launch(settings, model, Path(logs), index=number))
            wait(servers)
            asyncio.run(speed(servers, 2 * count, 8, 0))
            return [asyncio.run(speed(servers, number, tokens, 1 + round_)) for number in at_once]
        finally:
            for server in servers:
                server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--at-once", default="8,16,32,64")
    parser.add_argument("--tokens", type=int, default=96)
    arguments = parser.parse_args()
    at_once = [int(number) for number in arguments.at_once.split(",")]
    found: dict[tuple[str, int], list[list[float]]] = {variant: [] for variant in VARIANTS}
    for round_ in range(arguments.rounds):
        for dtype, count in VARIANTS:
            speeds = measure(arguments.model.resolve(), dtype, count, at_once, arguments.tokens, round_)
            found[dtype, count].append(speeds)
            print(f"{dtype}, {count} engine(s): {', '.join(f'{each:.0f}' for each in speeds)} tokens/s", flush=True)
    medians = {
        f"{dtype}-{count}": [round(statistics.median(each), 1) for each in zip(*rounds, strict=True)]
        for (dtype, count), rounds in found.items()
    }
    print(
        json.dumps(
            {
                "model": arguments.model.name,
                "at_once": at_once,
                "tokens_per_second": medians,
                "tokens": arguments.tokens,
                "rounds": arguments.rounds,
                "hardware": cpu_machine(),
            }
        )
    )


if __name__ == "__main__":
    main()
