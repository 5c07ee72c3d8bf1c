"""A run on a storage, as the delivery to MLflow and TensorBoard finds it."""

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from nbrl.agent.trajectory import to_table
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.environments.questions import table_of
from nbrl.tasks.environments.stored import SPLITS
from nbrl.tasks.metrics import of
from nbrl.tasks.reward.score import SCHEMA as REWARDS
from nbrl.tasks.runs.history import Record, Summary
from nbrl.tasks.runs.recipes import load
from nbrl.tasks.runs.results import evaluation_of
from nbrl.tasks.runs.run import Run
from nbrl.tasks.runs.scope import Artifact, Scope, Weights
from tests.flows.test_show import trajectory
from tests.tasks.storing import keep, stored

RUN = Run(name="r", run_id="x", config_digest="d", seed=0, recipe="tiny", policy="w0", config={})
CONFIG = load("tiny-cpu", ["record.traces=1"])


def begun(tmp_path: Path) -> Storage:
    """A storage with the questions of the run."""
    made = Storage(StorageSettings(root=str(tmp_path / "root")))
    layout = RUN.layout.data
    made.create_json(layout.digests, {layout.split(name): made.write_table(layout.split(name), questions()) for name in SPLITS})
    return made


def iteration(storage: Storage, number: int, epoch: str = "e0001-abcdef") -> None:
    """An iteration with an update and the evaluation of what it made."""
    weights = Weights(updates=number, digest=f"w{number}")
    scope = Scope(run="r", run_id="x", seed=0, epoch=epoch, iteration=number, weights=weights)
    layout = scope.layout.round(0)
    tables = {
        layout.prompts: questions().append_column("group", questions()["id"]),
        layout.rewards: rewards(),
        layout.selection: pa.table({"a": [1]}),
        layout.trajectories: to_table([trajectory(), trajectory().model_copy(update={"id": "q-1"})]),
    }
    artifacts = [stored(storage, key, table) for key, table in tables.items()]
    record = Record(
        iteration=number,
        cursor=1,
        checkpoint=RUN.layout.checkpoint(number + 1, epoch),
        artifacts=artifacts,
        metrics={"reward/em": 0.1 * number, "time/update": 1.0},
        run_id="x",
        epoch=epoch,
        finished=1000.0 + number,
        weights=f"w{number + 1}",
    )
    storage.create_json(scope.layout.record, record.model_dump(mode="json"))
    storage.write_bytes(f"{record.checkpoint}/hf/model.safetensors", b"weights")
    evaluated(storage, Weights(updates=number + 1, digest=f"w{number + 1}"))


def evaluated(storage: Storage, policy: Weights, more: Mapping[str, float] | None = None) -> None:
    if evaluation_of(storage, RUN, policy) is not None:
        return
    scope = Scope(run="r", run_id="x", seed=0, epoch="e0001-abcdef", iteration=0, weights=policy, stage="evaluation")
    layout = scope.layout.round(0)
    said = to_table([trajectory(), trajectory().model_copy(update={"id": "q-1"})])
    sampled = stored(storage, layout.trajectories, said)
    parts = {sampled.path: sampled.digest, **sampled.parts}
    metrics = of({"em": 0.5, "success": 0.5 + policy.updates / 10, **(more or {})}, "last")
    digest = storage.write_table(layout.rewards, rewards())
    keep(storage, scope, "evaluate", [policy.digest], Artifact(path=layout.rewards, digest=digest, parts=parts, metrics=metrics))


def questions() -> pa.Table:
    return table_of([{"id": "q", "question": "one?", "answers": ["1"], "ability": "qa", "source": "s", "environment": "world"}])


def rewards() -> pa.Table:
    """Of two trajectories, of which the second is right."""
    rows = [
        {"trajectory": f"q-{number}", "group": "q", "status": "answered", "success": number, "em": number, "total": number / 2}
        for number in (0, 1)
    ]
    return pa.Table.from_pylist([{"environment": "world", "ability": "qa", **row} for row in rows], schema=REWARDS)


def summary_of(before: dict[str, float], after: dict[str, float]) -> Summary:
    """Of a run of three iterations with these held-out scores."""
    return Summary(
        run="r",
        before=before,
        after=after,
        iterations=3,
        trajectories=12,
        sampled_tokens=99,
        mismatch_max=0.0,
        overhead_share=0.1,
        seconds={"iteration": 6.0},
        curve=[0.0, 0.5, 1.0],
        curve_path="learning-curve.png",
        example="r/q-1",
    )
