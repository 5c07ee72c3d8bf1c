"""What a waiting episode costs the host: memory of many episodes in flight, each with a full context, each waiting for the model.

Episodes are real, and so are their requests: the last prompt of each is POSTed by the policy for SGLang to a server, another
process, that reads it and keeps silent. Contexts are those of the default settings after seven steps, 20 000 tokens in the mean,
in a vocabulary of 150 000 words with five characters a token. The figure is the host's besides kernels, so here alone a kernel is
an object of this process that returns text; no cell runs. Memory is this process's resident set, less that before the episodes.

Prints one JSON line: `episodes`, `mean_tokens` of the prompts that wait, `rss_mb` (MB = 10^6 bytes), `mb_each`, `hardware`.
"""

import argparse
import asyncio
import gc
import itertools
import json
import os
import random
import statistics
import string
import sys

from hardware import cpu_machine
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from nbrl.agent.episode import Episode, Task
from nbrl.agent.errors import PolicyError
from nbrl.agent.kernel import CellResult
from nbrl.agent.messages import Prompt
from nbrl.agent.policies.sglang import SglangPolicy, engine_session
from nbrl.agent.policy import Generation, Sampling
from nbrl.agent.settings import AgentSettings
from nbrl.agent.tokens.tokenizer import ChatTokenizer
from nbrl.agent.tools.base import Toolbox
from nbrl.agent.trajectory import Output, Trajectory

VOCABULARY, STEPS, ACTION_TOKENS, MEAN_TOKENS, SPREAD = 150_000, 7, 300, 20_000, 2_000
WARM, FRAME_TOKENS = 2, 1_300
"""FRAME_TOKENS are those of the system prompt, the task, the tags around every turn and the tail, in this vocabulary."""
SILENT = """
import asyncio
async def swallow(reader, writer):
    while await reader.read(65536):
        pass
    writer.close()
async def main():
    server = await asyncio.start_server(swallow, "127.0.0.1", 0, backlog=4096)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"""


def words() -> list[str]:
    letters = itertools.product(string.ascii_lowercase, repeat=4)
    return ["".join(word) for word in itertools.islice(letters, VOCABULARY)]


def tokenizer(known: list[str]) -> ChatTokenizer:
    """Bytes, and each word with a blank before it; lossless."""
    pieces = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *(f"Ġ{word}" for word in known)]
    made = Tokenizer(models.BPE({piece: number for number, piece in enumerate(pieces)}, [], ignore_merges=True))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    return ChatTokenizer(made)


class Texts:
    """Prose of known words, each text its own."""

    def __init__(self, known: list[str], seed: int) -> None:
        self._known, self._random = known, random.Random(seed)

    def of(self, tokens: int) -> str:
        return " " + " ".join(self._random.choices(self._known, k=tokens))


class Prints:
    """nbrl.agent.kernel.Kernel: every cell prints `tokens` tokens."""

    def __init__(self, texts: Texts, tokens: int) -> None:
        self._texts, self._tokens = texts, tokens

    async def execute(self, code: str, timeout: float, message: str = "") -> CellResult:
        return CellResult("ok", [Output(kind="stream", text=self._texts.of(self._tokens) + "\n")])


class Waits:
    """nbrl.agent.policy.Policy: written actions for STEPS steps, then a request that nobody answers."""

    def __init__(self, texts: Texts, tokens: ChatTokenizer, engine: SglangPolicy, waiting: "asyncio.Queue[int]") -> None:
        self._texts, self._tokens, self._engine, self._waiting, self._step = texts, tokens, engine, waiting, 0

    async def generate(self, prompt: Prompt, max_tokens: int, seed: int) -> Generation:
        if self._step == STEPS:
            self._waiting.put_nowait(len(prompt.token_ids))
            return await self._engine.generate(prompt, max_tokens, seed)
        self._step += 1
        think = self._texts.of(ACTION_TOKENS // 2)
        ids = self._tokens.encode_action(f"<think>{think}</think><code>print('''{self._texts.of(ACTION_TOKENS // 2)}''')</code>")
        return Generation(ids, [-random.random() for _ in ids], "step-1", "stop")


def resident_mb() -> float:
    gc.collect()
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE") / 1e6


async def measure(episodes: int, seed: int) -> dict[str, float | int]:
    known = words()
    tokens, settings = tokenizer(known), AgentSettings(deadline_s=3600.0)
    texts, chance, waiting = Texts(known, seed), random.Random(seed), asyncio.Queue[int]()
    server = await asyncio.create_subprocess_exec(sys.executable, "-c", SILENT, stdout=asyncio.subprocess.PIPE)
    assert server.stdout is not None
    url = f"http://127.0.0.1:{int(await server.stdout.readline())}"

    async with engine_session(timeout_s=3600.0) as session:
        engine = SglangPolicy(session, url, tokens.stop_ids, Sampling())

        def start(number: int) -> "asyncio.Task[Trajectory]":
            printed = (MEAN_TOKENS - FRAME_TOKENS + chance.randint(-SPREAD, SPREAD)) // STEPS - ACTION_TOKENS
            task = Task(f"t-{number}", f"t-{number}", 0, texts.of(40), "qa", number)
            policy, kernel = Waits(texts, tokens, engine, waiting), Prints(texts, printed)
            return asyncio.create_task(Episode(task, policy, kernel, Toolbox([]), tokens, settings).run())

        tasks, lengths = [], []

        async def more(count: int) -> None:
            """Episodes one after the other, until all wait; then everything that is sent is in the server's hands."""
            for _ in range(count):
                tasks.append(start(len(tasks)))
                lengths.append(await waiting.get())
            await asyncio.sleep(1.0)

        await more(WARM)
        before = resident_mb()
        await more(episodes)
        grown = resident_mb() - before
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    server.kill()
    await server.wait()
    if strange := [each for each in ended if not isinstance(each, asyncio.CancelledError | PolicyError)]:
        raise RuntimeError(f"{len(strange)} episodes did not wait: {str(strange[0])[:500]}")
    return {
        "episodes": episodes,
        "mean_tokens": round(statistics.mean(lengths[WARM:])),
        "rss_mb": round(grown, 1),
        "mb_each": round(grown / episodes, 3),
        "hardware": cpu_machine(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    print(json.dumps(asyncio.run(measure(given.episodes, given.seed))))


if __name__ == "__main__":
    main()
