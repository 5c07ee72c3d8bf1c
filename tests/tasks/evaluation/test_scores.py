import pyarrow as pa
import pytest

from nbrl.agent.trajectory import Node, Status, Step, Trajectory, to_table
from nbrl.tasks.environments.questions import table_of
from nbrl.tasks.evaluation.answers import SCHEMA, answers_of, header, markdown, question_id, rows
from nbrl.tasks.evaluation.scores import by_question, majority, metrics, question_scores, scores, success
from nbrl.tasks.evaluation.summary import EvaluationSummary, Subject
from nbrl.tasks.reward.score import SCHEMA as REWARDS


def row(
    question: str, sample: int, answer: str | None, right: bool, environment: str = "e", ability: str = "a"
) -> dict[str, object]:
    return {
        "question_id": question,
        "environment": environment,
        "ability": ability,
        "question": f"What is {question}?",
        "references": ["42"],
        "sample": sample,
        "answer": answer,
        "status": "answered" if answer else "no_answer",
        "success": float(right),
        "em": float(right),
        "f1": float(right),
        "reward": float(right),
        "steps": 1,
        "sampled_tokens": 3,
        "trajectory": f"{question}-{sample}",
        "unscored": "",
        "failure": "",
    }


def table(*made: dict[str, object]) -> pa.Table:
    return pa.Table.from_pylist(list(made), schema=SCHEMA)


def test_every_question_counts_once_however_many_samples_it_has() -> None:
    found = scores(table(row("q1", 0, "42", True), row("q1", 1, "42", True), row("q2", 0, "1", False), row("q2", 1, "42", True)))
    assert found[0].questions == 2
    assert found[0].success.value == pytest.approx(0.75)
    assert found[0].pass_at[2].value == 1.0


def test_a_missing_answer_is_wrong_and_has_no_vote() -> None:
    samples = by_question(table(row("q", 0, None, False), row("q", 1, None, False), row("q", 2, "42", True)))["q"]
    assert success(samples) == pytest.approx(1 / 3)
    assert majority(samples) == 1.0
    assert majority(samples[:2]) == 0.0


def test_the_vote_goes_to_the_answer_of_most_samples_after_normalisation() -> None:
    marked = [row("q", 0, "Paris", True), row("q", 1, "Rome", False), row("q", 2, "the Rome!", False)]
    assert majority(by_question(table(*marked))["q"]) == 0.0
    assert majority(by_question(table(*marked[:2]))["q"]) == 1.0


def test_the_headline_of_a_vote_is_the_votes_score() -> None:
    answers = table(row("q", 0, "1", False), row("q", 1, "1", False), row("q", 2, "42", True))
    assert metrics(scores(answers), "vote")["success"] == 0.0
    assert metrics(scores(answers), "agent")["success"] == pytest.approx(1 / 3)
    assert question_scores(answers, "vote") == {"q": 0.0}


def test_environments_and_abilities_have_scores_of_their_own() -> None:
    found = scores(
        table(
            row("a1", 0, "42", True, "a", "x"),
            row("a2", 0, "1", False, "a", "y"),
            row("b1", 0, "42", True, "b", "z"),
        )
    )
    assert [(each.label, each.questions, each.success.value) for each in found] == [
        ("all", 3, pytest.approx(2 / 3)),
        ("a", 2, 0.5),
        ("a/x", 1, 1.0),
        ("a/y", 1, 0.0),
        ("b", 1, 1.0),
    ]
    assert metrics(found, "agent")["success/a/y"] == 0.0


def test_what_the_infrastructure_failed_at_enters_no_score() -> None:
    failed = row("q1", 1, None, False) | {"status": "failed"}
    alone = row("q3", 0, None, False) | {"status": "failed"}
    answers = table(row("q1", 0, "42", True), failed, row("q2", 0, "1", False), row("q2", 1, "42", True), alone)
    found = scores(answers)[0]
    assert (found.questions, found.success.value) == (2, 0.75)
    assert found.pass_at[2].value == 1.0  # of the one question with two samples
    assert question_scores(answers, "agent") == {"q1": 1.0, "q2": 0.5}


def test_one_sample_has_neither_pass_at_k_nor_a_vote() -> None:
    found = scores(table(row("q", 0, "42", True)))[0]
    assert (found.pass_at, found.majority) == ({}, None)


def test_a_question_is_named_alike_whether_its_environment_was_evaluated_alone_or_not() -> None:
    assert question_id("sums", "sums:q1") == question_id("sums", "q1") == "sums:q1"


def played(name: str, sample: int, status: Status, answer: str | None) -> Trajectory:
    sampled = Node(parent=-1, kind="sampled", step=0, token_ids=[1, 2, 3], logprobs=[0.0] * 3, weights_version="0")
    return Trajectory(
        id=f"{name}-{sample}",
        group=name,
        sample=sample,
        question="What?",
        ability="a",
        environment="e",
        status=status,
        answer=answer,
        failure="the wire was cut" if status is Status.FAILED else "",
        nodes=[sampled],
        steps=[Step(code="1")],
    )


def rewarded(trajectory: Trajectory, success: float) -> dict[str, object]:
    zero = dict.fromkeys(("total", "qa", "em", "f1", "answered", "format", "execution", "length"), 0.0)
    names = {"trajectory": trajectory.id, "group": trajectory.group, "ability": "a", "environment": "e"}
    return {**names, **zero, "status": trajectory.status, "step_rewards": [0.0], "success": success, "own": [], "unscored": ""}


def test_answers_join_questions_trajectories_and_rewards() -> None:
    questions = table_of(
        [{"id": "q", "question": "What?", "answers": ["42", "forty-two"], "ability": "a", "source": "s", "environment": "e"}]
    )
    trajectories = [played("q", 0, Status.ANSWERED, "42"), played("q", 1, Status.FAILED, None)]
    rewards = pa.Table.from_pylist([rewarded(trajectories[1], 0.0), rewarded(trajectories[0], 1.0)], schema=REWARDS)
    found = answers_of(to_table(trajectories), rewards, questions).to_pylist()
    assert [(each["trajectory"], each["success"], each["answer"], each["failure"]) for each in found] == [
        ("q-0", 1.0, "42", ""),
        ("q-1", 0.0, None, "the wire was cut"),
    ]
    assert found[0]["references"] == ["42", "forty-two"]
    assert found[0]["question_id"] == "e:q"
    assert found[0]["sampled_tokens"] == 3


def test_a_report_says_what_was_asked_of_whom_and_how_sure_its_scores_are() -> None:
    answers = table(row("q1", 0, "42", True), row("q1", 1, "1", False), row("q2", 0, "1", False), row("q2", 1, None, False))
    summary = EvaluationSummary(
        name="n",
        recipe="r",
        subject=Subject(name="run@3", digest="d", run="run", updates=3),
        mode="vote",
        samples=2,
        environments=["e"],
        metrics={},
        scores=scores(answers),
        trajectories=4,
        sampled_tokens=12,
        failed=1,
        unscored=0,
        seconds=2.0,
        processor_seconds=0.0,
        gpu_seconds=0.0,
        finished=0.0,
    )
    page = markdown(summary, "s3://b/answers.parquet")
    assert "# Evaluation of run@3" in page
    assert "majority vote" in page
    assert "1 failed for the infrastructure and are left out, and 0 could not be scored and count as wrong" in page
    assert header(summary) == ["questions", "n", "success", "pass@2", "majority", "F1"]
    assert rows(summary)[0][:3] == ["all", "2", "0.250 [0.000, 0.500]"]
    assert EvaluationSummary.model_validate(summary.model_dump(mode="json")) == summary
