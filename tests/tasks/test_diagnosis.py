from pathlib import Path

import pyarrow as pa
import pytest

from nbrl.agent.trajectory import SCHEMA as TRAJECTORIES
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.nodes.diagnosis import diagnose
from nbrl.tasks.reward.score import SCHEMA as REWARDS
from nbrl.tasks.runs.history import Record
from nbrl.tasks.runs.scope import Artifact

STEP = {"kind": "cell", "think": "", "code": ""}
FOLDER = "runs/a/iterations/000000/round-0"


def record(storage: Storage, answer: str | None, dropped: str, failure: str = "", steps: int = 1, **facets: float) -> Record:
    """An iteration of two groups of two, every trajectory alike."""
    means = {"total": 0.0, "qa": 0.0, "success": 0.0, "em": 0.0, "f1": 0.0, "format": 1.0, "execution": 1.0, "length": 0.0}
    means |= {"answered": float(answer is not None)} | facets
    status = "failed" if failure else "answered" if answer is not None else "step_limit"
    groups = ["q1", "q1", "q2", "q2"]
    questions = {"q1": "How deep is the basin?", "q2": "How wide is the gate?"}
    rows = [
        {"id": f"{group}-{n}", "group": group, "question": questions[group], "ability": "qa", "status": status}
        | {"answer": answer, "failure": failure, "steps": [STEP] * steps, "nodes": []}
        for n, group in enumerate(groups)
    ]
    table = pa.Table.from_pylist(rows, schema=TRAJECTORIES)
    prompts = pa.table({"id": ["q1", "q2"], "group": ["q1", "q2"], "answers": [["#### 42"], ["7"]], "rule": ["qa", "qa"]})
    prompts = prompts.append_column("reference", pa.array(["", ""])).append_column("environment", pa.array(["e", "e"]))
    rewards = [
        {"trajectory": row["id"], "group": row["group"], "ability": "qa", "status": status, "step_rewards": []} | means
        for row in rows
    ]
    rewarded = pa.Table.from_pylist(rewards, schema=REWARDS)
    tables = {"prompts": prompts, "trajectories": table, "rewards": rewarded, "selection": pa.table({"group": []})}
    paths = {f"{FOLDER}/{name}.parquet": each for name, each in tables.items()}
    artifacts = [Artifact(path=path, digest=storage.write_table(path, each)) for path, each in paths.items()]
    counts = {f"select/dropped/{dropped}": 2.0} if dropped else {}
    return Record(
        iteration=0,
        cursor=2,
        checkpoint="",
        artifacts=artifacts,
        metrics=counts,
        skipped="why",
        run_id="x",
        epoch="e0001-abcdef",
        finished=1.0,
        weights="w0",
    )


@pytest.mark.parametrize(
    ("answer", "dropped", "facets", "cause"),
    [
        ("42", "all_wrong", {"format": 0.1}, "does not keep to the format"),
        (None, "all_wrong", {}, "end before an answer"),
        ("42", "all_wrong", {"f1": 0.6}, "come near their references"),
        ("x", "all_wrong", {}, "too hard"),
        ("42", "all_right", {"success": 1.0, "em": 1.0, "f1": 1.0}, "knows these questions already"),
    ],
)
def test_the_likely_cause_follows_from_the_facets(
    tmp_path: Path, answer: str | None, dropped: str, facets: dict[str, float], cause: str
) -> None:
    storage = Storage(StorageSettings(root=str(tmp_path)))
    said = diagnose(storage, [record(storage, answer, dropped, **facets)], "more patience")
    assert cause in said
    assert said.count("most likely:") == 1
    assert f"{facets.get('format', 1.0):.0%}" in said


def test_two_questions_stand_as_examples_with_answer_and_reference(tmp_path: Path) -> None:
    storage = Storage(StorageSettings(root=str(tmp_path)))
    said = diagnose(storage, [record(storage, "42", "all_wrong", f1=0.6)], "more patience")
    assert "example: 'How deep is the basin?' was answered '42'; right is '#### 42'" in said
    assert "example: 'How wide is the gate?' was answered '42'; right is '7'" in said
    unanswered = diagnose(storage, [record(storage, None, "all_wrong")], "more patience")
    assert "was not answered" in unanswered


def test_failures_are_blamed_on_the_infrastructure_and_quoted(tmp_path: Path) -> None:
    storage = Storage(StorageSettings(root=str(tmp_path)))
    said = diagnose(storage, [record(storage, None, "failed", failure="the engine is gone")], "more patience")
    assert "the infrastructure" in said
    assert "the engine is gone" in said


def test_where_nobody_took_a_step_the_context_is_too_short_and_the_records_own_reason_stands(tmp_path: Path) -> None:
    storage = Storage(StorageSettings(root=str(tmp_path)))
    said = diagnose(storage, [record(storage, None, "", steps=0, format=0.0)], "more patience")
    assert said.startswith("the last iteration taught nothing: why;")
    assert "agent.context_tokens" in said
    assert said.endswith("\nmore patience")
