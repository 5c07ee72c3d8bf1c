"""Asks a served teacher for the log-probs of sampled tokens."""

import asyncio

import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer

from nbrl.agent.http.client import usable_key
from nbrl.infra.engine.client import EngineClient
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.learner.batch.batch import batch_to_teach
from nbrl.tasks.learner.batch.targets import Targets
from nbrl.tasks.learner.batch.token_logprobs import table_of
from nbrl.tasks.learner.batch.tree import Forest
from nbrl.tasks.learner.orders import TeachOrder, read_tables
from nbrl.tasks.learner.settings import DistillLoss
from nbrl.tasks.model_folder.source import PolicySettings, fetch, local_config

AT_ONCE, PATH_S = 8, 600.0  # requests, and the seconds of each


async def served_logprobs(loss: DistillLoss, policy: PolicySettings, order: TeachOrder, storage: Storage) -> pa.Table:
    """Return the log-probs of the order's tokens as a server gives them, in rows of TOKEN_LOGPROBS_SCHEMA.

    Raises ConfigError if it has other tokens than the policy, and EngineError if it does not answer.
    """
    batch = await asyncio.to_thread(lambda: batch_to_teach(read_tables(order, storage)))
    forest, folder = batch.forest, fetch(policy)
    vocabulary = (local_config(PolicySettings(path=str(folder))) or {}).get("vocab_size")
    by_node: dict[int, list[float]] = {}
    paths = _longest(forest)
    slots = asyncio.Semaphore(AT_ONCE)
    async with EngineClient(loss.teacher, PATH_S, vocabulary, usable_key(loss.key)) as client:
        await _check_tokens(client, forest.path_ids(paths[0]), Tokenizer.from_file(str(folder / "tokenizer.json")))

        async def scored(action: int) -> None:
            async with slots:
                logprobs = await client.score(forest.path_ids(action))
            for node in forest.path(action):
                end = forest.depth[node] - 1  # the path's first token has no log-prob
                by_node[node] = logprobs[end - len(forest.ids[node]) : end]

        async with asyncio.TaskGroup() as group:
            for action in paths:
                group.create_task(scored(action))
    logprobs = np.array([value for action in forest.actions for value in by_node[action.place]])
    return table_of(batch.trajectories, Targets.of(forest), logprobs)


def _longest(forest: Forest) -> list[int]:
    """Return actions whose root paths hold all others."""
    above = {node for action in range(len(forest.actions)) for node in forest.path(action)[1:]}
    by_place = {action.place: number for number, action in enumerate(forest.actions) if action.place not in above}
    return list(by_place.values())


async def _check_tokens(client: EngineClient, ids: list[int], tokenizer: Tokenizer) -> None:
    """Raises ConfigError if the server reads other text in token ids than the policy. One without a tokenizer does not say."""
    theirs, mine = await client.text_of(ids), tokenizer.decode(ids, skip_special_tokens=False)
    if theirs is not None and "".join(theirs.split()) != "".join(mine.split()):
        raise ConfigError(
            f"the teacher at {client.url} has other tokens than the policy ({theirs[:40]!r}, not {mine[:40]!r}); serve one with "
            "the same tokenizer, and name it by update.loss.teacher"
        )
