"""sample: chooses the prompts of an iteration."""

import numpy as np
import pyarrow as pa

from nbrl.tasks.metrics import Metric
from nbrl.tasks.nodes.durable import durable
from nbrl.tasks.runs.scope import Artifact, Scope
from nbrl.tasks.seeds import derive_seed
from nbrl.tasks.services.services import Services


def visit_order(seed: int, size: int, first: int, count: int) -> list[int]:
    """Rows at `first … first + count - 1` of an endless order in which every epoch is a new permutation of all `size` rows."""
    rows: list[int] = []
    for position in range(first, first + count):
        epoch, offset = divmod(position, size)
        if not rows or offset == 0:
            order = np.random.default_rng(derive_seed(seed, "epoch", epoch)).permutation(size)
        rows.append(int(order[offset]))
    return rows


def with_groups(prompts: pa.Table, epochs: list[int]) -> pa.Table:
    """Prompts with the column `group`: the id and, after the first epoch, the epoch, so that groups are unique in a run."""
    names = [f"{name}.{epoch}" if epoch else name for name, epoch in zip(prompts["id"].to_pylist(), epochs, strict=True)]
    return prompts.append_column("group", pa.array(names, pa.string()))


def prompts_at(questions: pa.Table, seed: int, cursor: int, count: int) -> pa.Table:
    """The `count` prompts at `cursor` in the order of a run with this seed."""
    rows = visit_order(seed, len(questions), cursor, count)
    epochs = [(cursor + step) // len(questions) for step in range(count)]
    return with_groups(questions.take(pa.array(rows)), epochs)


@durable
def sample(services: Services, scope: Scope, cursor: int, round_: int) -> Artifact:
    """Take the prompts at `cursor` in the run's order of training questions."""
    count = services.config.rollout.prompts
    prompts = prompts_at(services.reads.questions(scope.run_layout.data, "train"), scope.seed, cursor, count)
    path = scope.layout.round(round_).prompts
    digest = services.storage.write_table(path, prompts)
    return Artifact(path=path, digest=digest, metrics={"sample/prompts": Metric(count, "sum")})
