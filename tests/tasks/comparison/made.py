"""Small runs and evaluations on a storage, with everything that comparing them reads."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from nbrl.agent.trajectory import Node, Status, Step, Trajectory, to_table
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.environments.questions import table_of
from nbrl.tasks.environments.stored import SPLITS
from nbrl.tasks.evaluation.answers import answers_of, finish
from nbrl.tasks.evaluation.summary import Subject
from nbrl.tasks.layout.runs import EVALUATIONS, EvaluationLayout
from nbrl.tasks.metrics import of
from nbrl.tasks.reward.score import SCHEMA as REWARDS
from nbrl.tasks.runs.epochs import take
from nbrl.tasks.runs.history import Record
from nbrl.tasks.runs.lease import Lease
from nbrl.tasks.runs.recipes import load
from nbrl.tasks.runs.run import Run
from nbrl.tasks.runs.scope import Artifact, Scope, Weights
from tests.tasks.storing import keep, stored

TOKENS = 100  # of one trajectory
QUESTIONS = [{"id": f"q{number}", "question": f"What is {number}?", "answers": [str(number)]} for number in range(4)]


def storage_in(folder: Path) -> Storage:
    return Storage(StorageSettings(root=str(folder)))


def questions(rows: Sequence[dict[str, Any]] = QUESTIONS) -> pa.Table:
    return table_of([{"ability": "counting", "source": "s", "environment": "world", **row} for row in rows])


def trajectories(asked: pa.Table, right: Sequence[float], tag: str = "") -> pa.Table:
    return to_table(
        Trajectory(
            id=f"{row['id']}{tag}-0",
            group=row["id"],
            sample=0,
            question=row["question"],
            ability=row["ability"],
            environment=row["environment"],
            status=Status.ANSWERED if good else Status.NO_ANSWER,
            answer=row["answers"][0] if good else None,
            nodes=[Node(parent=-1, kind="sampled", step=0, token_ids=[1] * TOKENS)],
            steps=[Step(think="I count", code=f"print({row['id']!r})", cell_status="ok", observation="seen")],
        )
        for row, good in zip(asked.to_pylist(), right, strict=True)
    )


def rewards(said: pa.Table, right: Sequence[float]) -> pa.Table:
    rows = []
    for row, good in zip(said.to_pylist(), right, strict=True):
        same = {"trajectory": row["id"], "group": row["group"], "ability": row["ability"], "environment": row["environment"]}
        scores = dict.fromkeys(("success", "em", "f1", "qa", "answered"), good) | {"total": 0.2 + 0.8 * good}
        rest = {"status": row["status"], "step_rewards": [0.2 + 0.8 * good], "unscored": "", "own": []}
        rows.append(same | scores | rest | {"format": 1.0, "execution": 1.0, "length": 0.0})
    return pa.Table.from_pylist(rows, schema=REWARDS)


def begun(storage: Storage, run: Run, asked: pa.Table, settings: dict[str, Any]) -> str:
    """Identity, questions, first start and its lease; returns the epoch."""
    layout = run.layout
    storage.create_json(layout.identity, run.model_dump(mode="json"))
    tables = {layout.data.split(name): asked for name in SPLITS}
    storage.create_json(layout.data.digests, {key: storage.write_table(key, table) for key, table in tables.items()})
    epoch = take(storage, layout, settings)
    ended(storage, run)
    return epoch.name


def ended(storage: Storage, run: Run, status: Any = "FINISHED", reason: str = "", **fields: Any) -> None:
    """The newest start ended like this; with other fields of its epoch than it has."""
    key = storage.list(run.layout.epochs)[-1]
    epoch = {**storage.read_json(key), **fields}
    lease = Lease.model_validate({"epoch": epoch, "beat": 1.0, "ended": True, "status": status, "reason": reason})
    storage.write_json(run.layout.lease, lease.model_dump())


def run(
    storage: Storage,
    name: str,
    held_out: dict[int, Sequence[float]],
    rollouts: Sequence[float] = (),
    asked: Sequence[dict[str, Any]] = QUESTIONS,
    overrides: Sequence[str] = (),
    metrics: dict[str, float] | None = None,
) -> Run:
    """A run with an iteration for each success of `rollouts`, and evaluations by updates, with the success of each question."""
    config = load("tiny-cpu", [f"iterations={len(rollouts)}", *overrides])
    settings, table = config.model_dump(mode="json"), questions(asked)
    made = Run(name=name, run_id=f"id-{name}", config_digest="d", seed=0, recipe="tiny-cpu", policy="w0", config=settings)
    epoch = begun(storage, made, table, settings)
    for updates, right in held_out.items():
        evaluated(storage, made, epoch, updates, table, right)
    for number, success in enumerate(rollouts):
        scope = _scope(made, epoch, number, Weights(updates=number, digest=f"w{number}"))
        layout, right = scope.layout.round(0), [1.0, *[0.0] * (len(asked) - 1)]
        said = trajectories(table, right, f".{number}")
        tables = {
            layout.prompts: table,
            layout.trajectories: said,
            layout.rewards: rewards(said, right),
            layout.selection: pa.table({"a": [1]}),
        }
        record = Record(
            iteration=number,
            cursor=number,
            checkpoint=made.layout.checkpoint(number + 1, epoch),
            artifacts=[stored(storage, key, each) for key, each in tables.items()],
            metrics={
                "reward/success": success,
                "reward/em": success,
                "rollout/trajectories": float(len(asked)),
                "rollout/sampled_tokens": float(TOKENS * len(asked)),
                "time/rollout": 2.0,
                "time/iteration": 3.0,
                "time/overhead": 1.0,
                "time/overhead_share": 0.3,
                **(metrics or {}),
            },
            run_id=made.run_id,
            epoch=epoch,
            finished=1000.0 + number,
            weights=f"w{number + 1}",
        )
        storage.create_json(scope.layout.record, record.model_dump(mode="json"))
    return made


def evaluated(storage: Storage, made: Run, epoch: str, updates: int, asked: pa.Table, right: Sequence[float]) -> Artifact:
    """An evaluation of a run's policy, by the node's result and its two tables."""
    weights = Weights(updates=updates, digest=f"w{updates}")
    scope = _scope(made, epoch, updates, weights).model_copy(update={"stage": "evaluation"})
    layout, said = scope.layout.round(0), trajectories(asked, right)
    sampled = stored(storage, layout.trajectories, said)
    parts = {sampled.path: sampled.digest, **sampled.parts}
    digest = storage.write_table(layout.rewards, rewards(said, right))
    success = sum(right) / len(right)
    metrics = of({"success": success, "em": success, "failed": 0.0, "unscored": 0.0}, "last")
    result = Artifact(path=layout.rewards, digest=digest, parts=parts, metrics=metrics)
    keep(storage, scope, "evaluate", [weights.digest], result)
    return result


def evaluation(
    storage: Storage,
    name: str,
    right: Sequence[float],
    asked: Sequence[dict[str, Any]] = QUESTIONS,
    overrides: Sequence[str] = (),
) -> Run:
    """A finished evaluation of its own."""
    config = load("tiny-cpu", list(overrides))
    settings, table = config.model_dump(mode="json"), questions(asked)
    made = Run(
        name=name,
        kind=EVALUATIONS,
        run_id=f"id-{name}",
        config_digest="d",
        seed=0,
        recipe="tiny-cpu",
        policy="m",
        config=settings,
    )
    epoch, subject = begun(storage, made, table, settings), Subject(name="a model", digest="m")
    storage.create_json(EvaluationLayout(name).subject, subject.model_dump(mode="json"))
    result = evaluated(storage, made, epoch, 0, table, right).timed("evaluate", 7.0, {"cpu/evaluate": 5.0})
    finish(storage, EvaluationLayout(name), config, subject, result, seconds=7.0)
    return made


def answers(right: Sequence[float], asked: Sequence[dict[str, Any]] = QUESTIONS) -> pa.Table:
    said = trajectories(questions(asked), right)
    return answers_of(said, rewards(said, right), questions(asked))


def _scope(made: Run, epoch: str, number: int, weights: Weights) -> Scope:
    return Scope(run=made.name, kind=made.kind, run_id=made.run_id, seed=0, epoch=epoch, iteration=number, weights=weights)
