"""sample: which prompts an iteration asks."""

import numpy as np
import pyarrow as pa

from tasks.node import node
from tasks.parts import Parts
from tasks.scope import Artifact, Scope, derive_seed


def visit_order(seed: int, size: int, first: int, count: int) -> list[int]:
    """Rows `first … first + count - 1` of an endless walk in which every epoch is a fresh permutation of all `size` rows."""
    rows: list[int] = []
    for position in range(first, first + count):
        epoch, offset = divmod(position, size)
        if not rows or offset == 0:
            order = np.random.default_rng(derive_seed(seed, "epoch", epoch)).permutation(size)
        rows.append(int(order[offset]))
    return rows


@node
async def sample(parts: Parts, scope: Scope, cursor: int, round_: int) -> Artifact:
    """The prompts at `cursor` in the run's walk over the training questions."""
    questions = parts.storage.read_table(f"runs/{scope.run}/data/train.parquet")
    count = parts.config.rollout.prompts
    rows = visit_order(scope.seed, len(questions), cursor, count)
    path = f"{scope.folder}/round-{round_}/prompts.parquet"
    digest = parts.storage.write_table(path, questions.take(pa.array(rows)))
    return Artifact(path=path, digest=digest, metrics={"prompts": count})
