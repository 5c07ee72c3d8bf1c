"""update: takes the optimiser steps on the selected trajectories."""

import asyncio
import shutil
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from nbrl.infra.manifest import part_digest
from nbrl.infra.storage import Storage
from nbrl.tasks.layout import HF, TOKEN_LOGPROBS
from nbrl.tasks.learner.orders import UpdateOrder, UpdateResult
from nbrl.tasks.metrics import of
from nbrl.tasks.nodes.durable import durable
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.scope import Artifact, Scope
from nbrl.tasks.seeds import derive_seed
from nbrl.tasks.services.services import Services

COMPUTING = ("old", "reference", "value", "forward", "backward", "critic", "step")


@durable
async def update(services: Services, scope: Scope, advantages: Artifact, trajectories: list[Artifact]) -> Artifact:
    """Make the checkpoint after the optimiser steps on all trajectories of the advantage table."""
    folder = services.scratch / f"update-{scope.iteration:06d}"
    before = await services.local_folder(scope.weights.checkpoint) if scope.updates else None
    out = str(services.storage.local_path(scope.next_checkpoint) or folder / "checkpoint")
    arguments = (services.config, services.storage, scope, advantages, trajectories, before, folder, out)
    order = await asyncio.to_thread(make_order, *arguments)
    result = await services.learner.update(order)
    if result.skipped:
        services.progress.say(f"iteration {scope.iteration + 1}: an optimiser step was skipped, {result.skipped}")
    artifact = await asyncio.to_thread(_keep, services, scope, result)
    shutil.rmtree(folder, ignore_errors=True)
    return artifact


def make_order(
    config: RunConfig,
    storage: Storage,
    scope: Scope,
    advantages: Artifact,
    trajectories: list[Artifact],
    before: Path | None,
    folder: Path,
    out: str,
) -> UpdateOrder:
    """Make the order to the learner and, in `folder`, the tables that it names. It starts from `before` and makes `out`."""
    advantage_rows = storage.read_table(advantages.path, advantages.digest)
    selected = advantage_rows["trajectory"].unique()
    rounds = [storage.read_table(artifact.path, artifact.digest) for artifact in trajectories]
    batch = pa.concat_tables([table.filter(pc.is_in(table["id"], selected)) for table in rounds])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    pq.write_table(batch, folder / "trajectories.parquet")
    pq.write_table(advantage_rows, folder / "advantages.parquet")
    return UpdateOrder(
        iteration=scope.iteration,
        seed=derive_seed(scope.seed, scope.iteration, "update"),
        trajectories=str(folder / "trajectories.parquet"),
        advantages=str(folder / "advantages.parquet"),
        estimator=config.advantage if config.learner_estimates else None,
        initial="" if before else scope.weights.digest,
        checkpoint_in=str(before) if before else None,
        checkpoint_out=out,
        dtype=config.published_dtype,
        rounding=config.publish.rounding,
    )


def _keep(services: Services, scope: Scope, result: UpdateResult) -> Artifact:
    """The finished checkpoint and what publish must prove, on the storage."""
    checkpoint, out = scope.next_checkpoint, Path(result.checkpoint)
    if services.storage.local_path(checkpoint) is None:
        services.storage.upload_folder(out, checkpoint)
        out = services.kept(out, checkpoint)
    summary = {"proof": result.proof.model_dump(), "metrics": result.metrics}
    result_key, logprobs_key = scope.layout.update_result, scope.layout.token_logprobs
    parts = {result_key: services.storage.write_json(result_key, summary)}
    if (out / TOKEN_LOGPROBS).is_file():  # a checkpoint that an earlier release finished has none
        parts[logprobs_key] = services.storage.write_table(logprobs_key, pq.read_table(out / TOKEN_LOGPROBS))
    return Artifact(
        path=checkpoint,
        digest=part_digest(out, f"{HF}/"),
        parts=parts,
        metrics=of(update_metrics(result.metrics), "last"),
    )


def update_metrics(metrics: Mapping[str, float]) -> dict[str, float]:
    """The learner's metrics, its phases under `update/`, with the seconds that are the update's own computation."""
    renamed = {f"update/{key}" if key.startswith("seconds/") else key: value for key, value in metrics.items()}
    return renamed | {
        "update/compute_seconds": sum(metrics[f"seconds/{phase}"] for phase in COMPUTING if f"seconds/{phase}" in metrics)
    }
