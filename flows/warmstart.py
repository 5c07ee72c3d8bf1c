"""A tiny policy from nothing: tokenizer → demonstrations → train → save."""

import asyncio
import threading
from pathlib import Path
from typing import TypeVar, cast

from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.utilities.annotations import quote

from nbrl.tasks.warmstart import run as nodes
from nbrl.tasks.warmstart.settings import WarmstartSettings

T = TypeVar("T")


def _whole(value: T) -> T:
    """Passes a large argument of a task through unchanged; otherwise Prefect searches it, item by item, for futures."""
    return cast(T, quote(value))


@task(cache_policy=NO_CACHE, persist_result=False)
async def tokenizer(settings: WarmstartSettings) -> nodes.Tokenizer:
    return await asyncio.to_thread(nodes.make_tokenizer, settings)


@task(cache_policy=NO_CACHE, persist_result=False)
async def demonstrations(settings: WarmstartSettings, words: nodes.Tokenizer) -> nodes.Demonstrations:
    return await asyncio.to_thread(nodes.make_demonstrations, settings, words)


@task(cache_policy=NO_CACHE, persist_result=False)
async def train(words: nodes.Tokenizer, examples: nodes.Demonstrations, settings: WarmstartSettings) -> nodes.Trained:
    """Cancelled, it stops at its next line of progress: a thread cannot be ended from outside."""
    logger, cancelled = get_run_logger(), threading.Event()

    def report(line: str) -> None:
        if cancelled.is_set():
            raise InterruptedError("the warm start was cancelled")
        logger.info(line)

    try:
        return await asyncio.to_thread(nodes.make_policy, words, examples, settings, report)
    finally:
        cancelled.set()


@task(cache_policy=NO_CACHE, persist_result=False)
async def save(trained: nodes.Trained, words: nodes.Tokenizer, out: Path) -> None:
    await asyncio.to_thread(nodes.save, trained.model, words, out)


@flow(name="warmstart", persist_result=False)
async def run(settings: WarmstartSettings, out: Path) -> dict[str, float]:
    """Make a policy in `out`; the metrics of its training."""
    words = await tokenizer(settings)
    examples = await demonstrations(settings, words)
    trained = await train(words, _whole(examples), settings)
    await save(_whole(trained), words, out)
    return trained.metrics
