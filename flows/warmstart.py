"""Makes a tiny policy from nothing: tokenizer → demonstrations → train → save."""

import asyncio
import threading
from pathlib import Path
from typing import TypeVar, cast

from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.utilities.annotations import quote
from tokenizers import Tokenizer

from nbrl.tasks.warmstart.demonstrations import Demonstrations
from nbrl.tasks.warmstart.run import Trained, make_demonstrations, make_policy
from nbrl.tasks.warmstart.save import save as write
from nbrl.tasks.warmstart.settings import WarmstartSettings
from nbrl.tasks.warmstart.tokenizer import make_tokenizer

T = TypeVar("T")


def _unsearched(value: T) -> T:
    """Passes a large argument of a task through unchanged; otherwise Prefect searches it, item by item, for futures."""
    return cast(T, quote(value))


@task(cache_policy=NO_CACHE, persist_result=False)
async def tokenizer(settings: WarmstartSettings) -> Tokenizer:
    return await asyncio.to_thread(make_tokenizer, settings)


@task(cache_policy=NO_CACHE, persist_result=False)
async def demonstrations(settings: WarmstartSettings, words: Tokenizer) -> Demonstrations:
    return await asyncio.to_thread(make_demonstrations, settings, words)


@task(cache_policy=NO_CACHE, persist_result=False)
async def train(words: Tokenizer, examples: Demonstrations, settings: WarmstartSettings) -> Trained:
    """Train in a thread. If cancelled, it stops at its next line of progress, because a thread cannot be ended from outside."""
    logger, cancelled = get_run_logger(), threading.Event()

    def report(line: str) -> None:
        if cancelled.is_set():
            raise InterruptedError("the warm start was cancelled")
        logger.info(line)

    try:
        return await asyncio.to_thread(make_policy, words, examples, settings, report)
    finally:
        cancelled.set()


@task(cache_policy=NO_CACHE, persist_result=False)
async def save(trained: Trained, words: Tokenizer, out: Path) -> None:
    await asyncio.to_thread(write, trained.model, words, out)


@flow(name="warmstart", persist_result=False)
async def run(settings: WarmstartSettings, out: Path) -> dict[str, float]:
    """Make a policy in `out` and return the metrics of its training."""
    words = await tokenizer(settings)
    examples = await demonstrations(settings, words)
    trained = await train(words, _unsearched(examples), settings)
    await save(_unsearched(trained), words, out)
    return trained.metrics
