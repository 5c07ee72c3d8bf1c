"""Tables of a round, and results, as nodes store them."""

import pyarrow as pa
from pydantic import ValidationError

from nbrl.agent.trajectory import from_table
from nbrl.infra.parts import DIGEST, INDEX, PART, ROW, parts_of
from nbrl.infra.storage import Storage
from nbrl.tasks.layout.stages import RoundLayout
from nbrl.tasks.rollout.chunks import index_of, write
from nbrl.tasks.runs.results import key_of, result_of
from nbrl.tasks.runs.scope import Artifact, Scope


def stored(storage: Storage, key: str, table: pa.Table) -> Artifact:
    """Trajectories in a chunk with an index, any other table in one object."""
    if not key.endswith(INDEX):
        return Artifact(path=key, digest=storage.write_table(key, table))
    part, digest = write(storage, RoundLayout.holding(key).chunks("w"), table)
    try:
        index = index_of(from_table(table), part, digest)
    except ValidationError:  # no trajectories, which a runner would not write
        index = pa.table({PART: [part] * len(table), DIGEST: [digest] * len(table), ROW: range(len(table))})
    return Artifact(path=key, digest=storage.write_table(key, index), parts=parts_of(index))


def keep(storage: Storage, scope: Scope, node: str, inputs: list[str], artifact: Artifact) -> None:
    """Store the result of a node."""
    storage.create_json(key_of(scope, node, inputs), result_of(scope, node, inputs, artifact).model_dump(mode="json"))
