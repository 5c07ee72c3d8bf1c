"""Checks what the index of a round tells against the trajectories themselves."""

from collections.abc import Iterator

import pyarrow as pa

from nbrl.agent.trajectory import from_table
from nbrl.infra.parts import DIGEST, PART, ROW
from nbrl.infra.storage import Storage
from nbrl.tasks.nodes.rollout import rollout_metrics
from nbrl.tasks.rollout.index import index_of
from nbrl.tasks.runs.scope import Artifact


def check_index(storage: Storage, artifact: Artifact, trajectories: pa.Table) -> Iterator[str]:
    """Contradictions of the index and the metrics that an artifact has of a round."""
    index = storage.read_index(artifact.path, artifact.digest)
    told, found = (each.drop_columns([PART, DIGEST, ROW]) for each in (index, index_of(from_table(trajectories), "", "")))
    if not told.equals(found):
        yield "the index tells of the trajectories what they are not"
    metrics = {name: metric.value for name, metric in rollout_metrics(index).items()}
    if any(artifact.values.get(name) != value for name, value in metrics.items()):
        yield "the counts of the rollout are not those of its index"
