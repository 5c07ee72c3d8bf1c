"""Asks a served teacher for the log-probs of sampled tokens."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer

from nbrl.agent.http.client import usable_key
from nbrl.infra.engine.client import EngineClient
from nbrl.infra.errors import EngineError
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import ConfigError, TeacherError
from nbrl.tasks.learner.batch.batch import batch_to_teach
from nbrl.tasks.learner.batch.targets import Targets
from nbrl.tasks.learner.batch.token_logprobs import check_scores, table_of
from nbrl.tasks.learner.batch.tree import Forest
from nbrl.tasks.learner.orders import TeachOrder, read_tables
from nbrl.tasks.learner.settings import DistillLoss
from nbrl.tasks.model_folder.source import PolicySettings, fetch
from nbrl.tasks.services.concurrently import all_of

T = TypeVar("T")
AT_ONCE, PATH_S = 8, 600.0  # requests, and the seconds of each
SAMPLE = "import math\nprint(math.gcd(12, 345) + 6789)  # The quick brown fox jumps over: the lazy dog?"
WAITS_S = (1.0, 5.0, 20.0)  # before the same request is made again
WRONG = (EngineError, ValueError, TypeError, LookupError)  # what an answer of any kind can lead to


async def served_logprobs(loss: DistillLoss, order: TeachOrder, storage: Storage) -> pa.Table:
    """Return the log-probs of the order's tokens as a server gives them, in rows of TOKEN_LOGPROBS_SCHEMA.

    Raises TeacherError if it does not answer, again and again, and UpdateError if it gives no log-probs.
    """
    batch = await asyncio.to_thread(lambda: batch_to_teach(read_tables(order, storage)))
    forest, slots = batch.forest, asyncio.Semaphore(AT_ONCE)
    by_node: dict[int, list[float]] = {}
    paths = _longest(forest)
    async with EngineClient(loss.teacher, PATH_S, key=usable_key(loss.key)) as client:

        async def scored(action: int) -> None:
            async with slots:
                logprobs = await _answered(loss.teacher, lambda: client.score(forest.path_ids(action)))
            for node in forest.path(action):
                end = forest.depth[node] - 1  # the path's first token has no log-prob
                by_node[node] = logprobs[end - len(forest.ids[node]) : end]

        await all_of(scored(action) for action in paths)
    logprobs = np.array([value for action in forest.actions for value in by_node[action.place]])
    check_scores(logprobs, f"the teacher at {loss.teacher}")
    return table_of(batch.trajectories, Targets.of(forest), logprobs)


async def check_served(loss: DistillLoss, policy: PolicySettings) -> None:
    """Ask a served teacher what it will be asked. Raises TeacherError if it does not answer, and ConfigError if it reads other
    text in token ids than the policy; one without a tokenizer does not say.
    """
    tokenizer = Tokenizer.from_file(str(fetch(policy) / "tokenizer.json"))
    ids = tokenizer.encode(SAMPLE, add_special_tokens=False).ids
    async with EngineClient(loss.teacher, PATH_S, key=usable_key(loss.key)) as client:
        await _answered(loss.teacher, lambda: client.score(ids))
        theirs = await _answered(loss.teacher, lambda: client.text_of(ids))
    mine = tokenizer.decode(ids, skip_special_tokens=False)
    if theirs is not None and "".join(theirs.split()) != "".join(mine.split()):
        raise ConfigError(
            f"the teacher at {loss.teacher} has other tokens than the policy ({theirs[:40]!r}, not {mine[:40]!r}); serve one "
            "with the same tokenizer, and name it by update.loss.teacher"
        )


async def _answered(url: str, ask: Callable[[], Awaitable[T]]) -> T:
    """Return an answer, after some tries. Raises TeacherError."""
    for wait in (*WAITS_S, None):
        try:
            return await ask()
        except WRONG as error:
            if wait is None:
                raise TeacherError(
                    f"the teacher at {url} (update.loss.teacher) does not answer as SGLang does, after {len(WAITS_S) + 1} tries: "
                    f"{' '.join(f'{type(error).__name__}: {error}'.split())[:300]}; nothing is lost: start it again, or name "
                    "another one with the same weights by `nbrl resume RUN --set update.loss.teacher=…`"
                ) from error
            await asyncio.sleep(wait)
    raise AssertionError("unreachable")


def _longest(forest: Forest) -> list[int]:
    """Return actions whose root paths hold all others."""
    above = {node for action in range(len(forest.actions)) for node in forest.path(action)[1:]}
    by_place = {action.place: number for number, action in enumerate(forest.actions) if action.place not in above}
    return list(by_place.values())
