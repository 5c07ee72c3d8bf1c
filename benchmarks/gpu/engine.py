"""The engine on the device: its start, its log-probs against the learner's, a publish, what it lends, and how fast it samples.

It needs the engine's environment, which the other parts do not.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from learner_step import SHAPES, make_model

from gpu.learner import l0_trajectories
from gpu.orders import make_learner, write_order
from gpu.probe import join
from gpu.row import Given, Row, figures, gib
from nbrl.infra.engine.client import EngineClient
from nbrl.infra.engine.server import EngineServer, launch, wait
from nbrl.infra.engine.settings import MEMORY_SAVER, EngineSettings
from nbrl.tasks.learner.orders import UpdateResult

ON_A_GPU = {"mem-fraction-static": "0.35", "enable-fp32-lm-head": "", MEMORY_SAVER: ""}
LIMIT_S = 400.0
PROMPT, SAMPLED = 256, 128  # tokens of a request


def measure(row: Row, given: Given) -> None:
    settings = settings_of(given.cuda, given.tiny)
    if not settings.python.exists():
        row.add("start", lambda: f"there is no engine environment at {settings.folder}")
        return
    join(given)
    shape, model = "tiny" if given.tiny else "qwen3-0.6b", given.scratch / "model"
    dtype = torch.bfloat16 if given.cuda else torch.float32
    row.add("model_made", lambda: make_model(SHAPES[shape], str(model), dtype, given.device.type), needed=True)
    made: list[UpdateResult] = []
    row.add("updated", lambda: made.append(updated(given, model, shape)), needed=True)
    servers: list[EngineServer] = []
    try:
        row.add("start", lambda: started(servers, settings, model, given.scratch), needed=True)
        if servers and made:
            (server,), (result,) = servers, made
            hf = given.scratch / result.checkpoint / "hf"
            row.add("publish", lambda: asked(server, lambda client: published(client, hf, result)), needed=True)
            row.add("lending", lambda: asked(server, lambda client: lent(client, given, result)))
            row.add("sampling", lambda: asked(server, lambda client: sampled(client, settings.max_running_requests)))
    finally:
        for server in servers:
            server.stop()
        dist.destroy_process_group()


def settings_of(cuda: bool, tiny: bool) -> EngineSettings:
    """As a training has them that shares its GPU."""
    device: Literal["cuda", "cpu"] = "cuda" if cuda else "cpu"
    made = EngineSettings(device=device, start_timeout_s=LIMIT_S, max_running_requests=4 if tiny else 256)
    return made.model_copy(update={"extra_args": ON_A_GPU}) if cuda else made


def updated(given: Given, model: Path, shape: str) -> UpdateResult:
    """Return the result of an order, whose learner is gone."""
    dtype = "bfloat16" if given.cuda else "float32"
    learner = make_learner(given, model, dtype=dtype, lr=1e-5, kl_coefficient=0.0, activation_checkpointing=True)
    return learner.execute(write_order(given, l0_trajectories(given, shape), "out"))


def started(servers: list[EngineServer], settings: EngineSettings, model: Path, logs: Path) -> dict[str, Any]:
    began = time.perf_counter()
    servers.append(launch(settings, model, logs))
    try:
        wait(servers)
    except Exception:
        log = servers[-1].log
        servers.pop().stop()
        raise RuntimeError(Path(log).read_text()[-3000:]) from None
    return {"s": figures(time.perf_counter() - began)}


def asked(server: EngineServer, question: Callable[[EngineClient], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
    async def ask() -> dict[str, Any]:
        async with server.client() as client:
            return await question(client)

    return asyncio.run(ask())


async def published(client: EngineClient, hf: Path, result: UpdateResult) -> dict[str, Any]:
    """Swap in the checkpoint; how its bits and log-probs compare with the learner's."""
    seconds = await client.publish(hf, "1")
    began = time.perf_counter()
    compared = await client.compare(hf)
    found = {"s": figures(seconds), "comparison_s": figures(time.perf_counter() - began), "equal": compared.equal}
    return found | {"different": list(compared.different), "why": compared.why, "nats": await apart(client, result)}


async def apart(client: EngineClient, result: UpdateResult) -> dict[str, float]:
    """Return how far its log-probs are from the learner's, on the tokens of the order's proof."""
    differences: list[float] = []
    for each in result.proof.sequences:
        scored = await client.score(each.token_ids, each.first)
        differences += [abs(a - b) for a, b in zip(scored, each.logprobs, strict=True)]
    return {"tokens": len(differences), "mean": figures(sum(differences) / len(differences)), "most": figures(max(differences))}


async def lent(client: EngineClient, given: Given, result: UpdateResult) -> dict[str, Any]:
    """Return what memory of the GPU is free before, while and after it lends that of its KV cache."""
    free, before = [_free_gib(given)], await apart(client, result)
    began = time.perf_counter()
    await client.lend_memory()
    free.append(_free_gib(given))
    middle = time.perf_counter()
    await client.take_memory_back()
    seconds = [figures(middle - began), figures(time.perf_counter() - middle)]
    free.append(_free_gib(given))
    return {"free_gib": free, "s": seconds, "same_logprobs_after": await apart(client, result) == before}


def _free_gib(given: Given) -> float:
    return gib(torch.cuda.mem_get_info()[0]) if given.cuda else 0.0


async def sampled(client: EngineClient, requests: int) -> dict[str, Any]:
    """Return the tokens a second of so many requests at once, after one round that is not counted."""
    for _ in range(2):
        began = time.perf_counter()
        await asyncio.gather(*(_sample(client, number) for number in range(requests)))
    return {"requests": requests, "tokens_per_s": figures(requests * SAMPLED / (time.perf_counter() - began))}


async def _sample(client: EngineClient, number: int) -> None:
    body = {
        "input_ids": [3 + (number * 31 + place * 7) % 200 for place in range(PROMPT)],
        "sampling_params": {"max_new_tokens": SAMPLED, "ignore_eos": True, "temperature": 1.0},
    }
    await client._call("POST", "/generate", body)
