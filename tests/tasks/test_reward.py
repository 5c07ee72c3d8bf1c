import pytest
from pydantic import ValidationError

from nbrl.tasks.errors import RewardError
from nbrl.tasks.reward.rules.files import reference_of
from nbrl.tasks.reward.rules.qa import exact_match, f1, normalise
from nbrl.tasks.reward.score import check_unscored, execution_of, format_of, length_of, score
from nbrl.tasks.reward.settings import QaWeights, RewardSettings

NOTHING = {"f1": 0, "exact": 0, "answered": 0}


def step(
    think: str = "a long enough thought", code: str = "print(1)", malformed: str = "", status: str = "ok", kinds: tuple = ()
) -> dict:
    return {
        "kind": "cell",
        "think": think,
        "code": code,
        "malformed": malformed,
        "cell_status": status,
        "outputs": [{"kind": k, "text": ""} for k in kinds],
    }


def row(answer: str | None, answers: list[str], steps: list[dict], rule: str = "qa") -> dict:
    return {
        "id": "t",
        "group": "g",
        "ability": "qa",
        "status": "answered",
        "answer": answer,
        "answers": answers,
        "rule": rule,
        "environment": "e",
        "steps": steps,
    }


def test_normalisation_lowers_strips_punctuation_and_articles() -> None:
    assert normalise("The  Hello, World!") == "hello world"


@pytest.mark.parametrize(
    ("answer", "reference", "value"),
    [
        ("cat sat on mat", "dog sat on rug", 0.5),
        ("hello world", "world hello", 1.0),
        ("repeated words words", "repeated words", 0.8),
        ("", "", 1.0),
        ("x y", "", 0.0),
        ("", "x y", 0.0),
    ],
)
def test_f1(answer: str, reference: str, value: float) -> None:
    assert f1(answer, [reference]) == pytest.approx(value)


def test_the_best_reference_counts() -> None:
    assert exact_match("Keldra", ["Vorn", "keldra!"]) == 1.0


def test_answers_in_other_scripts_are_told_apart() -> None:
    assert exact_match("北京", ["上海"]) == 0.0
    assert exact_match("北京", ["北京。"]) == 1.0


def test_two_answers_of_punctuation_only_are_not_the_same() -> None:
    assert exact_match("?!", ["..."]) == 0.0


def test_a_silent_cell_that_succeeds_earns_execution() -> None:
    assert execution_of(step(kinds=())) == 1.0
    assert execution_of(step(status="error", kinds=("stream", "error"))) == 0.5
    assert execution_of(step(status="timeout", kinds=("stream",))) == 0.0
    assert execution_of(step(status="none")) == 0.0


def test_format_needs_a_thought_and_code() -> None:
    assert format_of(step()) == 1.0
    assert format_of(step(think="short")) == 0.0
    assert format_of(step(code="x=1")) == 0.0
    assert format_of(step(malformed="no <think>")) == 0.0


def test_a_perfect_trajectory_earns_one_and_qa_comes_last() -> None:
    scored = score(row("Keldra", ["Keldra"], [step(), step()]), RewardSettings())
    assert scored["step_rewards"] == pytest.approx([0.1, 0.9])
    assert (scored["total"], scored["em"]) == pytest.approx((1.0, 1.0))


def test_a_wrong_answer_earns_having_answered_and_no_answer_nothing() -> None:
    assert score(row("Vorn", ["Keldra"], [step()]), RewardSettings())["qa"] == pytest.approx(0.1)
    assert score(row(None, ["Keldra"], [step()]), RewardSettings())["qa"] == 0.0
    assert score(row("  ", ["Keldra"], [step()]), RewardSettings())["answered"] == 0.0


@pytest.mark.parametrize(
    ("answer", "produced", "qa"),
    [(None, b"x", 0.9), (None, b"y", 0.0), ("done", b"x", 1.0), ("done", b"y", 0.1)],
)
def test_right_files_are_paid_whether_or_not_an_answer_was_given(answer: str | None, produced: bytes, qa: float) -> None:
    made = {"files": [{"path": "a.txt", "data": produced}], "reference": reference_of({"a.txt": b"x"})}
    assert score(row(answer, [], [step()], "files") | made, RewardSettings())["qa"] == pytest.approx(qa)


def test_a_trajectory_without_steps_scores_nothing() -> None:
    scored = score(row(None, ["Keldra"], []), RewardSettings())
    assert (scored["step_rewards"], scored["total"]) == ([], 0.0)


def test_a_thought_of_the_wanted_length_earns_length() -> None:
    assert [length_of("word " * count, 10) for count in (10, 8, 12, 0, 7, 22, 40)] == pytest.approx(
        [1.0, 1.0, 1.0, 0.6, 0.95, 0.5, 0.0]
    )
    settings = RewardSettings(length=0.2, length_target=10)
    scored = score(row(None, ["Keldra"], [step(think="word " * 10), step(think="word " * 22)]), settings)
    plain = score(row(None, ["Keldra"], [step(think="word " * 10), step(think="word " * 22)]), RewardSettings())
    extra = [a - b for a, b in zip(scored["step_rewards"], plain["step_rewards"], strict=True)]
    assert extra == pytest.approx([0.1, 0.05])
    assert (scored["length"], plain["length"]) == (0.75, 0.0)


def test_a_range_moves_what_an_answer_pays() -> None:
    settings = RewardSettings(qa_weights=QaWeights(low=-1.0, high=3.0))
    found = [score(row(answer, ["Keldra"], [step()]), settings)["qa"] for answer in ("Keldra", "Vorn", None)]
    assert found == pytest.approx([3.0, -0.6, -1.0])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"qa": 0, "format": 0, "execution": 0}, "all 0"),
        ({"length": 0.1}, "need each other"),
        ({"length_target": 10}, "need each other"),
        ({"qa_weights": {"low": 1.0}}, "must be below"),
        ({"qa_weights": {"low": float("nan")}}, "finite number"),
        ({"qa_weights": NOTHING, "format": 0, "execution": 0}, "every answer would pay the same"),
        ({"qa_weights": NOTHING | {"low": -1.0}}, "every answer would pay the same"),
        ({"qa_weights": NOTHING, "execution": 0, "compat": "l0"}, "every answer would pay the same"),
        ({"format": float("inf")}, "finite number"),
        ({"qa": 0, "execution": 0, "compat": "l0"}, "compat l0 has no effect"),
    ],
)
def test_weights_that_cannot_act_are_refused(fields: dict, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        RewardSettings.model_validate(fields)


def test_a_summary_earns_format_and_takes_nothing_from_execution() -> None:
    summary = step(think="", code="", status="none") | {"kind": "summary"}
    empty = summary | {"malformed": "the summary is empty"}
    assert (format_of(summary), format_of(empty)) == (1.0, 0.0)
    scored = score(row("Keldra", ["Keldra"], [step(), summary, step()]), RewardSettings())
    assert scored["step_rewards"] == pytest.approx([0.1 / 3 + 0.05, 0.1 / 3, 0.1 / 3 + 0.05 + 0.8])
    assert (scored["total"], scored["execution"], scored["format"]) == pytest.approx((1.0, 1.0, 1.0))


def test_too_many_answers_without_a_score_are_told_with_what_continues_a_run_and_an_evaluation() -> None:
    check_unscored(["away"], 5)
    with pytest.raises(
        RewardError, match=r"continue the run by `nbrl resume` or the evaluation by the same command, or begin another"
    ):
        check_unscored(["away", "away"], 5)


@pytest.mark.parametrize("said", ["", "Paris", "It is Paris, I think."])
def test_replies_to_a_program_earn_what_its_answer_does_and_nothing_for_their_form(said: str) -> None:
    replies = [{**step(think="a thought that is long enough", code=said), "kind": "reply", "cell_status": "none"}] * 2
    scored = score(row("Keldra", ["Keldra"], replies), RewardSettings())
    assert (scored["step_rewards"], scored["total"], scored["format"]) == ([0.0, 1.0], 1.0, 1.0)
    posted = {"outcome": '{"success": false, "reward": 0.25, "metrics": {}}', "rule": "outcome"}
    assert score(row(None, [], replies) | posted, RewardSettings())["total"] == 0.25
