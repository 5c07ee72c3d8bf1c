"""Worlds: a session for each trajectory, by real kernels and the real scorer."""

import json
from pathlib import Path
from typing import Any

import pytest

from nbrl.agent.tools.base import GIVEN_UP
from nbrl.agent.trajectory import Trajectory, from_table
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.audit import sessions as audited
from nbrl.tasks.audit.sessions import Replayed, SessionReplay
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
    # A thread of the last cell still calls when the trajectory ends.
    "late": [
        "import threading, time\ndef late():\n    wait(1)\n    deposit(10)\nthreading.Thread(target=late).start()\n"
        "time.sleep(0.3)\nsubmit_final_answer('x')"
    ],
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
    reached, refused, wrong, fault, late = made = from_table(table)
    assert [each.status for each in made] == ["done", "answered", "step_limit", "failed", "answered"], [
        each.failure for each in made
    ]
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
        '{"balance": 0, "target": 10}',
    ]
    assert [(call.name, call.result) for call in late.steps[0].tool_calls] == [("wait", json.dumps(GIVEN_UP))]
    assert "Account.deposit: ValueError: the bank burns" in fault.failure
    assert "burns" not in fault.steps[0].observation
    scored = score_table(with_references(table, prompts), RewardSettings())
    assert scored["success"].to_pylist() == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert scored["qa"].to_pylist()[1:3] == [0.3, 0.5]
    check_replays(rows, made, monkeypatch)


def check_replays(rows: list[dict[str, Any]], made: list[Trajectory], monkeypatch: pytest.MonkeyPatch) -> None:
    """The sessions are the same again, and another answer, outcome, opening or seed is named."""
    with SessionReplay({"bank": BANK}, 5.0) as again:
        assert list(again.contradictions(rows, made)) == []
        assert again.counts == Replayed(sessions=4)
        reached, wrong = made[0].model_copy(deep=True), made[2].model_copy(deep=True)
        reached.steps[0].tool_calls[0].result = "5"
        wrong.outcome = wrong.outcome.replace("5", "10")
        others = [{**row, "seed": row["seed"] + 1} for row in rows]
        assert list(again.contradictions(rows, [reached, wrong])) == [
            f'{made[0].id}: in step 1 deposit({{"amount": 4}}) was 5 and is now 4',
            f"{made[2].id}: its session has another outcome now",
        ]
        (drawn,) = again.contradictions(others, [made[2]])
        assert "draw({}) was" in drawn
        reached.steps[0].tool_calls[0].arguments = "amount"
        assert list(again.contradictions(rows, [reached])) == [f"{made[0].id}: in step 1 the arguments of deposit are no JSON"]
        monkeypatch.setattr(audited, "CALL_S", 0.1)
        (hangs,) = again.contradictions(rows, [made[4]])
        assert "does not end within 0.1 s now" in hangs
        reached.question += "!"
        assert list(again.contradictions(rows, [reached])) == [f"{made[0].id}: its session begins otherwise"]
