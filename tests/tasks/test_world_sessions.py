"""Worlds: a session for each trajectory, by real kernels and the real scorer."""

from pathlib import Path

import pytest

from nbrl.agent.trajectory import from_table
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.environments import stored
from nbrl.tasks.environments.kinds.own import OwnEnvironment
from nbrl.tasks.layout.runs import DataLayout
from nbrl.tasks.nodes.reward import with_references
from nbrl.tasks.nodes.rollout import task_rows
from nbrl.tasks.reward.score import score_table
from nbrl.tasks.reward.settings import RewardSettings
from nbrl.tasks.rollout.plan import EnvironmentPlan
from nbrl.tasks.runs.recipes import load
from tests.tasks.scripted import play

BANK = OwnEnvironment(kind="own", place="tests.tasks.bank_world:Bank")
PLAYS = {
    "reached": ["print(deposit(4), deposit(6))"],
    "refused": [
        "try:\n    deposit(-1)\nexcept Exception as error:\n    print('no:', error)\nprint(deposit(3))",
        "submit_final_answer('x')",
    ],
    "wrong": ["deposit('much')", "print(deposit(5))\nprint(draw() == draw())", "1", "2"],
    "fault": ["deposit(666)"],
}


@pytest.mark.sandbox
def test_each_trajectory_has_a_session_that_opens_bounds_ends_and_scores_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, layout = Storage(StorageSettings(root=str(tmp_path / "root"))), DataLayout("data")
    stored.write({"bank": BANK}, storage, layout)
    config = load("tiny-cpu", ["agent.context_tokens=900", "agent.action_tokens=400", "rollout.attempts=1"])
    prompts = stored.read(storage, layout, "train").slice(0, 1)
    prompts = prompts.append_column("group", prompts["id"])
    rows = task_rows(prompts, len(PLAYS), 0)
    table = play(
        monkeypatch, config, storage, layout, {"bank": EnvironmentPlan(sessions=BANK.session_source())}, rows, [*PLAYS.values()]
    )
    reached, refused, wrong, fault = made = from_table(table)
    assert [each.status for each in made] == ["done", "answered", "step_limit", "failed"], [each.failure for each in made]
    assert all(each.question.endswith("The account holds 0.") for each in made)
    assert reached.steps[0].observation == "4 10"
    assert refused.steps[0].observation.startswith("no: deposit: ValueError: the amount must be above 0")
    assert "the argument amount does not fit" in wrong.steps[0].observation
    assert len(wrong.steps) == 4
    assert [each.outcome for each in made] == [
        '{"balance": 10, "target": 10}',
        '{"balance": 3, "target": 10}',
        '{"balance": 5, "target": 10}',
        "",
    ]
    assert "Account.deposit: ValueError: the bank burns" in fault.failure
    assert "burns" not in fault.steps[0].observation
    scored = score_table(with_references(table, prompts), RewardSettings())
    assert scored["success"].to_pylist() == [1.0, 0.0, 0.0, 0.0]
    assert scored["qa"].to_pylist()[1:3] == [0.3, 0.5]
