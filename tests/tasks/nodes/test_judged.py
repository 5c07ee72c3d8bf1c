"""reward and evaluate where a model judges, and the audit of what they made: one server grades, everything else is a double."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from nbrl.agent.trajectory import Status, Step, Trajectory, to_table
from nbrl.tasks.audit.chain import check_evaluation
from nbrl.tasks.audit.recompute import rescored, same
from nbrl.tasks.audit.sessions import SessionReplay
from nbrl.tasks.environments.questions import table_of
from nbrl.tasks.errors import RewardError
from nbrl.tasks.layout.runs import JUDGEMENTS
from nbrl.tasks.nodes.evaluate import evaluate
from nbrl.tasks.nodes.reward import reward
from nbrl.tasks.nodes.select import select
from nbrl.tasks.reward.judge.prompt import NEUTRAL, JudgedAnswer, grading_of
from nbrl.tasks.runs.results import NodeResult
from nbrl.tasks.runs.run import Run
from nbrl.tasks.runs.scope import Artifact, Weights
from nbrl.tasks.services.services import Services
from tests.tasks.grader import Grader, grading
from tests.tasks.nodes.doubles import SCOPE, services
from tests.tasks.storing import stored


@pytest.fixture
def server() -> Iterator[Grader]:
    with grading() as made:
        yield made


def judging(folder: Path, server: Grader, *overrides: str) -> Services:
    return services(folder, overrides=[f"reward.judge={{base_url: '{server.url}', name: m, key: null}}", *overrides])


def questions(count: int) -> pa.Table:
    """Questions whose answer is 42, judged by a model."""
    made = {"answers": ["42"], "ability": "qa", "source": "test", "rule": "judge", "environment": "e"}
    return table_of([made | {"id": f"q{number}", "question": f"What is q{number}?"} for number in range(count)])


def answered(made: Services, *groups: tuple[str | None, ...]) -> tuple[Artifact, Artifact]:
    """Prompts, and trajectories that gave these answers to them; the question of a group with `never` gets no grade."""
    prompts = questions(len(groups))
    prompts = prompts.append_column("group", prompts["id"])
    played = [
        Trajectory(
            id=f"q{number}-{sample}",
            group=f"q{number}",
            sample=sample,
            question=f"What never is q{number}?" if "never" in answers else f"What is q{number}?",
            ability="qa",
            status=Status.STEP_LIMIT if answer is None else Status.ANSWERED,
            answer=answer,
            nodes=[],
            steps=[Step(think="a thought of some length", code="print(42)", cell_status="ok")],
        )
        for number, answers in enumerate(groups)
        for sample, answer in enumerate(answers)
    ]
    layout = SCOPE.layout.round(0)
    tables = {layout.prompts: prompts, layout.trajectories: to_table(played)}
    first, second = (stored(made.storage, path, table) for path, table in tables.items())
    return first, second


def scored(made: Services, prompts: Artifact, trajectories: Artifact) -> Artifact:
    return asyncio.run(reward.alone(made, SCOPE, prompts, trajectories, 0))


def test_a_round_is_graded_and_scored(tmp_path: Path, server: Grader) -> None:
    made = judging(tmp_path, server)
    done = scored(made, *answered(made, ("42", "41"), ("no idea", None), ("42", "42")))
    rows = {row["trajectory"]: row for row in made.storage.read_table(done.path).to_pylist()}
    assert [rows[name]["success"] for name in sorted(rows)] == [1.0, 0.0, 0.0, 0.0, 1.0, 1.0]
    assert rows["q0-0"]["qa"] == 1.0
    assert rows["q0-1"]["qa"] == pytest.approx(0.1)  # for having answered
    assert done.values["reward/own/not_attempted/e"] == pytest.approx(2 / 6)
    assert done.values["reward/own/correct/e/qa"] == pytest.approx(3 / 6)
    assert done.values["reward/unscored"] == 0.0
    assert len(server.bodies) == 4  # both answers of the last group are one


def test_a_group_of_which_an_answer_cannot_be_graded_is_set_aside_and_counted(tmp_path: Path, server: Grader) -> None:
    made = judging(tmp_path, server)
    done = scored(made, *answered(made, ("never", None), ("42", "41"), ("42", "41")))
    assert done.values["reward/unscored"] == 1.0
    selection = asyncio.run(select.alone(made, SCOPE, done, 4, 0))
    found = [row["reason"] for row in made.storage.read_table(selection.path).to_pylist() if not row["kept"]]
    assert found == ["unscored"]
    assert selection.values["select/dropped/unscored"] == 1.0


def test_too_many_without_a_grade_stop_the_run_and_the_next_start_asks_only_for_those(tmp_path: Path, server: Grader) -> None:
    made = judging(tmp_path, server, "reward.judge.concurrency=1")
    artifacts = answered(made, ("42", "41"), ("never", "never again"))
    with pytest.raises(RewardError, match="scorers failed on 1 of 4 trajectories"):
        scored(made, *artifacts)
    assert not made.storage.exists(SCOPE.layout.round(0).rewards)
    assert len(made.storage.list(JUDGEMENTS)) == 2
    assert server.answers == ["41", "42", NEUTRAL, NEUTRAL, "never", "never"]
    with pytest.raises(RewardError):
        scored(made, *artifacts)
    assert server.answers == ["41", "42", *[NEUTRAL] * 4, *["never"] * 4]


def again(made: Services, prompts: Artifact, trajectories: Artifact, done: Artifact) -> tuple[bool, str]:
    """Whether the audit finds the recorded rewards, and what is gone."""
    rewards = made.storage.read_table(done.path)
    tables = [made.storage.read_table(each.path) for each in (trajectories, prompts)]
    found = rescored(made.storage, made.config, tables[0], tables[1], rewards)
    return same(rewards, found.rewards), found.lost


def test_the_audit_computes_the_rewards_again_without_the_model(tmp_path: Path) -> None:
    with grading() as server:
        made = judging(tmp_path, server)
        artifacts = answered(made, ("never", None), ("42", "no idea"), ("42", "43"))
        done = scored(made, *artifacts)
    assert again(made, *artifacts, done) == (True, "")
    assert again(made, *artifacts, done) == (True, "")
    judge = made.config.reward.judge
    assert judge is not None
    # What another run could grade since is still a fault of this one.
    grading_of(judge).keep(made.storage, JudgedAnswer("What never is q0?", ("42",), "never"), "CORRECT", "GRADE: CORRECT")
    assert again(made, *artifacts, done) == (True, "")
    key = grading_of(judge).key(JudgedAnswer("What is q1?", ("42",), "no idea"))
    made.storage.delete(key)
    assert again(made, *artifacts, done) == (
        False,
        f"grades of the judge are gone, so its rewards cannot be checked: 1 in all, first {key}",
    )


def test_the_audit_finds_rewards_that_the_grades_do_not_give(tmp_path: Path, server: Grader) -> None:
    made = judging(tmp_path, server)
    artifacts = answered(made, ("42", "41"))
    done = scored(made, *artifacts)
    rewards = made.storage.read_table(done.path)
    forged = rewards.set_column(rewards.column_names.index("success"), "success", pa.array([1.0, 1.0]))
    made.storage.write_table(done.path, forged)
    assert again(made, *artifacts, done) == (False, "")


def test_an_evaluation_counts_what_could_not_be_graded_as_wrong_and_is_audited(tmp_path: Path, server: Grader) -> None:
    made = judging(tmp_path, server)
    run = Run(name="r", run_id="x", seed=3, config_digest="", recipe="r", policy="w0", config={})
    held_out = run.layout.data.split("held_out")
    asked = ["What is it?"] * 5 + ["What was refused ?"]
    table = questions(6).set_column(1, "question", pa.array(asked))
    table = table.set_column(2, "answers", pa.array([["42"]] * 4 + [["41"], ["42"]]))
    made.storage.create_json(run.layout.data.digests, {held_out: made.storage.write_table(held_out, table)})
    done = asyncio.run(evaluate.alone(made, SCOPE.model_copy(update={"stage": "evaluation"})))
    assert done.values["success"] == pytest.approx(4 / 6)
    assert done.values["unscored"] == 1.0
    assert done.values["own/not_attempted"] == 0.0
    assert len(server.answers) == 3  # an answer that is a reference is not tried against others
    result = NodeResult(run_id="x", node="evaluate", epoch="e0001-abcdef", inputs=["w2"], artifact=done, finished=0.0, version="")
    policies = {"w2": Weights(updates=2, digest="w2")}
    assert list(check_evaluation(made.storage, made.config, run, result, policies, SessionReplay({}, 1.0))) == []
    made.storage.delete(JUDGEMENTS)
    (said,) = check_evaluation(made.storage, made.config, run, result, policies, SessionReplay({}, 1.0))
    assert said.startswith("grades of the judge are gone, so its rewards cannot be checked: 2 in all, first judgements/")
