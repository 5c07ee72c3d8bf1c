"""update: the optimiser steps on the selected trajectories."""

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from nbrl.tasks.learner.orders import UpdateOrder
from nbrl.tasks.nodes.durable import node
from nbrl.tasks.runs.scope import Artifact, Scope
from nbrl.tasks.seeds import derive_seed
from nbrl.tasks.services.services import Services

COMPUTING = ("old", "reference", "value", "forward", "backward", "critic", "step")


@node
async def update(services: Services, scope: Scope, advantages: Artifact, trajectories: list[Artifact]) -> Artifact:
    """The checkpoint after the optimiser steps on every trajectory of the advantage table."""
    advantage_rows = services.storage.read_table(advantages.path)
    wanted = advantage_rows["trajectory"].unique()
    rounds = [services.storage.read_table(artifact.path) for artifact in trajectories]
    batch = pa.concat_tables([table.filter(pc.is_in(table["id"], wanted)) for table in rounds])
    work = services.scratch / f"update-{scope.iteration:06d}"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    pq.write_table(batch, work / "trajectories.parquet")
    pq.write_table(advantage_rows, work / "advantages.parquet")
    checkpoint = scope.checkpoint(scope.updates + 1)
    out = services.storage.local_path(checkpoint) or work / "checkpoint"
    before = await services.local_folder(scope.checkpoint(scope.updates)) if scope.updates else None
    result = await services.learner.update(
        UpdateOrder(
            iteration=scope.iteration,
            seed=derive_seed(scope.seed, scope.iteration, "update"),
            trajectories=str(work / "trajectories.parquet"),
            advantages=str(work / "advantages.parquet"),
            estimate=services.config.advantage if services.config.learner_estimates else None,
            checkpoint_in=str(before) if before else None,
            checkpoint_out=str(out),
        )
    )
    if services.storage.local_path(checkpoint) is None:
        services.storage.upload_folder(out, checkpoint)
    summary = {"canary_token_ids": result.canary_token_ids, "canary_logprobs": result.canary_logprobs, "metrics": result.metrics}
    services.storage.write_bytes(f"{scope.folder}/update/result.json", json.dumps(summary).encode())
    digest = weights_digest(out / "hf")
    shutil.rmtree(work, ignore_errors=True)
    if result.skipped:
        services.warn(f"iteration {scope.iteration + 1}: an optimiser step was skipped, {result.skipped}")
    return Artifact(path=checkpoint, digest=digest, metrics=update_metrics(result.metrics))


def update_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """The learner's metrics, its phases under `update/`, with the seconds that are the update's own computation."""
    renamed = {f"update/{key}" if key.startswith("seconds/") else key: value for key, value in metrics.items()}
    return renamed | {
        "update/compute_seconds": sum(metrics[f"seconds/{phase}"] for phase in COMPUTING if f"seconds/{phase}" in metrics)
    }


def weights_digest(folder: Path) -> str:
    """sha256 over the weights of a Hugging Face folder."""
    sha = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as file:
            hashlib.file_digest(file, lambda: sha)
    return sha.hexdigest()
