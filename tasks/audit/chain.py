"""Checks the chain of updates: each checkpoint was made from the one before it and from the recorded trajectories."""

import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pydantic import ValidationError

from nbrl.agent.trajectory import from_table
from nbrl.infra.manifest import MANIFEST, check_folder, part_digest
from nbrl.infra.storage import Storage, sha256
from nbrl.infra.tracking import Tracking
from nbrl.tasks.audit.recompute import close, rescored, same, sampled_from
from nbrl.tasks.audit.sessions import SessionReplay
from nbrl.tasks.environments import stored
from nbrl.tasks.errors import BrokenInvariantError
from nbrl.tasks.evaluation.answers import answers_of_result
from nbrl.tasks.evaluation.scores import metrics as score_metrics
from nbrl.tasks.evaluation.scores import scores
from nbrl.tasks.layout.checkpoints import HF, RESULT, updates_of
from nbrl.tasks.layout.runs import RunLayout
from nbrl.tasks.layout.stages import StageLayout, is_trajectories
from nbrl.tasks.learner.checkpoint.identity import order_digest
from nbrl.tasks.learner.orders import UpdateResult, read_tables
from nbrl.tasks.nodes.evaluate import asked, first_of_each
from nbrl.tasks.nodes.rollout import check_weights
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.history import Record
from nbrl.tasks.runs.orders import make_order, taught_in
from nbrl.tasks.runs.pins import champions
from nbrl.tasks.runs.results import NodeResult, is_to_come
from nbrl.tasks.runs.run import Run
from nbrl.tasks.runs.scope import Scope, Weights
from nbrl.tasks.tracking.names import shown
from nbrl.tasks.tracking.parameters import RUN_ID

PARTIAL = ".partial"


def check_update(storage: Storage, config: RunConfig, run: Run, record: Record, before: Weights, staleness: int) -> Iterator[str]:
    """Yield the contradictions of the checkpoint of one iteration, whose batch weights `staleness` updates older sampled.

    The weights of one that retention deleted are not looked at, its order is.
    """
    if record.policy.updates == before.updates:
        if record.policy != before:
            yield "no update was made, but the weights are others"
        return
    updated = next((artifact for artifact in record.artifacts if artifact.path == record.checkpoint), None)
    if updated is None or record.policy != Weights(updates=before.updates + 1, checkpoint=updated.path, digest=updated.digest):
        yield "the record names other weights than its update made"
        return
    for key, digest in updated.parts.items():
        storage.read_bytes(key, digest)
    try:
        made_by = UpdateResult.model_validate_json(storage.read_bytes(f"{updated.path}/{RESULT}")).order
    except ValidationError:
        yield f"{storage.uri(f'{updated.path}/{RESULT}')} is damaged: it is no result of an update; bring it back from a copy"
    else:
        if made_by != expected_order(storage, config, run, record, before, staleness):
            yield "the checkpoint was not made by these trajectories and advantages from the checkpoint before it"
    if storage.exists(f"{updated.path}/{MANIFEST}"):
        yield from _check_weights(storage, updated.path, updated.digest)


def _check_weights(storage: Storage, checkpoint: str, digest: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as scratch:
        folder = storage.local_path(checkpoint)
        if folder is None:
            folder = storage.download_folder(checkpoint, Path(scratch, "checkpoint"))
        check_folder(folder)
    if part_digest(storage.read_manifest(checkpoint), f"{HF}/") != digest:
        yield "the checkpoint holds other weights than the update made"


def expected_order(storage: Storage, config: RunConfig, run: Run, record: Record, before: Weights, staleness: int) -> str:
    """Return the digest of the order that an iteration's artifacts make."""
    scope = Scope(run=run.name, run_id=run.run_id, seed=run.seed, epoch="", iteration=record.iteration, weights=before)
    (advantages,) = (artifact for artifact in record.artifacts if artifact.path.endswith("/advantages.parquet"))
    trajectories = [round_.trajectories for round_ in record.rounds]
    order = make_order(config, scope, advantages, trajectories, staleness, taught=taught_in(record))
    start = sha256(storage.read_bytes(f"{before.checkpoint}/{RESULT}")) if before.checkpoint else order.initial
    return order_digest(order, read_tables(order, storage), start)


def leftovers(
    storage: Storage, run: RunLayout, records: Collection[Record], results: Collection[NodeResult], lag: int = 0
) -> Iterator[str]:
    """Yield the keys below finished iterations, evaluations and checkpoints that neither a record nor the result of a node names.

    What the iteration in progress and the `lag` after it have made so far is no leftover, nor is what belongs to an evaluation
    that has no result yet.
    """
    artifacts = [artifact for record in records for artifact in record.artifacts] + [result.artifact for result in results]
    named = {key for artifact in artifacts for key in (artifact.path, *artifact.parts)} | champions(storage)
    in_progress = {run.iteration(len(records) + ahead).folder for ahead in range(lag + 1)}
    updates = max((record.updates for record in records), default=0)
    for key in storage.list(run.folder):
        folder = "/".join(key.split("/")[:4])
        of_stage = key.startswith((f"{run.iterations}/", f"{run.evaluations}/")) and folder not in in_progress
        if key.startswith(f"{run.evaluations}/") and is_to_come(key, results):
            continue
        if of_stage and StageLayout(folder, "").epoch_of(key) and key not in named:
            yield f"{key} is left over: nothing names it"
        newest = updates_of(folder) >= updates if key.startswith(f"{run.checkpoints}/") else False
        if newest and folder.endswith(PARTIAL):  # its state is being written, or a kill cut it off
            continue
        if key.startswith(f"{run.checkpoints}/") and folder not in named and updates_of(folder) <= updates:
            yield f"{key} is left over: no update made its checkpoint"


def check_tracking(tracking: Tracking, run: Run, records: Sequence[Record], option: str = "") -> Iterator[str]:
    """Yield contradictions between MLflow and the records: a metric that is missing, twice at a step, or another value.

    `option` is that with which commands find the storage.
    """
    if not tracking.find_run(run.name, {RUN_ID: run.run_id}):
        yield f"MLflow at {tracking.uri} has no run {run.name!r}; `nbrl track {run.name}{option}` delivers it"
        return
    of_steps = {record.iteration + 1: shown(record.metrics, run.environments) for record in records}
    for name in sorted({name for metrics in of_steps.values() for name in metrics}):
        wanted = sorted((step, metrics[name]) for step, metrics in of_steps.items() if name in metrics)
        points = sorted(tracking.history(name))
        if [step for step, _ in points] != [step for step, _ in wanted]:
            steps = f"at steps {_few(points)}, the records at {_few(wanted)}"
            yield f"MLflow has {name} {steps}; `nbrl track {run.name}{option}` delivers what is missing"
        elif points != wanted:
            yield f"MLflow has other values of {name} than the records"


def _few(points: Sequence[tuple[int, float]]) -> str:
    steps = [str(step) for step, _ in points]
    return ", ".join(steps if len(steps) <= 6 else [*steps[:5], "…"]) or "none"


def check_evaluation(
    storage: Storage, config: RunConfig, run: Run, result: NodeResult, policies: dict[str, Weights], sessions: SessionReplay
) -> Iterator[str]:
    """Yield contradictions of one evaluation. `policies` are those of its number of updates that the run has had, by digest;
    `sessions` plays those of its trajectories again.
    """
    policy = policies.get(result.inputs[0])
    if policy is None:
        yield "it evaluated weights that the run never had after so many updates"
        return
    artifact = result.artifact
    sampled, *_ = filter(is_trajectories, artifact.parts)
    trajectories = storage.read_table(sampled, artifact.parts[sampled])
    questions = stored.read(storage, run.layout.data, "held_out")
    if len(trajectories) < len(first_of_each(questions, config.evaluate.questions)) * config.evaluate.samples:
        yield "it has fewer trajectories than its settings say"
        return
    rows = asked(questions, config.evaluate, run.seed)
    if Counter(trajectories["id"].to_pylist()) != Counter(row["id"] for row in rows):
        yield "its trajectories are not those of the held-out questions, each once"
        return
    try:
        check_weights(sampled_from(trajectories), str(policy.updates))
    except BrokenInvariantError as error:
        yield str(error)
    yield from sessions.contradictions(rows, from_table(trajectories))
    rewards: pa.Table = storage.read_table(artifact.path, artifact.digest)
    again = rescored(storage, config, trajectories, questions, rewards)
    if again.lost:
        yield again.lost
    elif not same(rewards, again.rewards):
        yield "the rewards are not what its trajectories earn"
    values = score_metrics(scores(answers_of_result(storage, artifact, questions)), config.evaluate.mode)
    if any(not close(value, artifact.values.get(name)) for name, value in values.items()):
        yield "its scores are not those of its answers"
