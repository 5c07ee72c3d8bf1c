"""teach: the log-probs of a teacher, of every sampled token that is learned from."""

import asyncio

import pyarrow.compute as pc

from nbrl.tasks.learner.orders import StoredTable, TeachOrder
from nbrl.tasks.metrics import of
from nbrl.tasks.nodes.durable import durable
from nbrl.tasks.runs.scope import Artifact, Scope
from nbrl.tasks.services.served_teacher import served_logprobs
from nbrl.tasks.services.services import Services


@durable
async def teach(services: Services, scope: Scope, advantages: Artifact, trajectories: list[Artifact]) -> Artifact:
    """Let the teacher score the tokens of all trajectories of the advantage table: the learner holds it, or it is served."""
    config, loss = services.config, services.config.update.teacher
    assert loss is not None
    order = TeachOrder(
        trajectories=[StoredTable(key=each.path, digest=each.digest) for each in trajectories],
        advantages=StoredTable(key=advantages.path, digest=advantages.digest),
    )
    if loss.served:
        table = await served_logprobs(loss, order, services.storage)
    else:
        if not config.pipeline.lag:  # else rollouts go on
            await services.engines.lend_memory()
        table = await services.learner.teach(order)
    path = scope.layout.teacher
    digest = await asyncio.to_thread(services.storage.write_table, path, table)
    tokens = pc.sum(pc.list_value_length(table["logprobs"])).as_py() or 0
    return Artifact(path=path, digest=digest, metrics=of({"teach/tokens": float(tokens)}, "sum"))
