"""What L0's reward functions return, configured as L0; and beside each of L0's faults, what is paid by default."""

from typing import Any

import pytest

from nbrl.agent.grammar import Grammar, Malformed
from nbrl.infra.closed import idle_settings
from nbrl.tasks.reward import l0
from nbrl.tasks.reward.rules.qa import exact_match, f1
from nbrl.tasks.reward.score import score
from nbrl.tasks.reward.settings import QaWeights, RewardSettings

CAPITAL = "The capital of France is Paris"
VALID = "<think>a thought that is long enough</think><code>print(40 + 2)</code>"


def step(text: str = VALID, kinds: list[str] | None = None) -> dict[str, Any]:
    """A step from the model's text and the outputs of its cell; None where no cell ran."""
    action = Grammar().parse(text)
    malformed = isinstance(action, Malformed)
    failed = kinds is not None and kinds[-1:] == ["error"]
    return {
        "kind": "cell",
        "think": "" if malformed else action.think,
        "code": "" if malformed else action.code,
        "malformed": action.reason if malformed else "",
        "cell_status": "none" if kinds is None else "error" if failed else "ok",
        "outputs": [{"kind": kind, "text": ""} for kind in kinds or []],
    }


def scored(answer: str | None, gold: str, steps: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    row = {
        "id": "t",
        "group": "g",
        "ability": "qa",
        "environment": "e",
        "status": "answered",
        "answer": answer,
        "answers": [gold],
        "rule": "qa",
    }
    return score({**row, "steps": steps}, RewardSettings.model_validate(fields))


def facet(name: str, steps: list[dict[str, Any]], compat: str = "l0") -> list[float]:
    """Step rewards when that facet alone has a weight."""
    weights = {"qa": 0.0, "format": 0.0, "execution": 0.0, name: 1.0}
    rewards: list[float] = scored(None, "x", steps, **weights, compat=compat)["step_rewards"]
    return rewards


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("Hello, World!", "hello world"),
        ("!@#$%^&*()", ""),
        ("  Extra   spaces  ", "extra spaces"),
        ("New\nYork", "new york"),
        ("New\tYork\u00a0City", "new york city"),
    ],
)
def test_normalise(text: str, normal: str) -> None:
    assert l0.normalise(text) == normal


@pytest.mark.parametrize(
    ("answer", "reference", "value"),
    [
        ("the cat sat on the mat", "a dog sat on the rug", 0.5),
        ("hello world", "world hello", 1.0),
        ("repeated words words", "repeated words", 0.8),
        ("", "", 1.0),
        ("a b c", "", 0.0),
        ("", "a b c", 0.0),
    ],
)
def test_f1(answer: str, reference: str, value: float) -> None:
    assert l0.f1(answer, [reference]) == pytest.approx(value)


def test_exact_match_minds_the_order() -> None:
    assert l0.exact_match("hello world", ["world hello"]) == 0


@pytest.mark.parametrize(
    ("answer", "value"),
    [(CAPITAL, 1.0), ("The capital of France is always Paris", 0.469231), ("London", 0.1), (None, 0.0)],
)
def test_qa(answer: str | None, value: float) -> None:
    assert l0.qa_reward(answer, [CAPITAL], QaWeights()) == pytest.approx(value, abs=1e-6)
    papers = {"f1": 0.4, "exact": 0.5, "answered": 0.1}
    assert scored(answer, CAPITAL, [step()], compat="l0", qa_weights=papers)["qa"] == pytest.approx(value, abs=1e-6)


def test_compat_alone_takes_the_weights_of_l0s_training() -> None:
    close = "The capital of France is always Paris"
    assert scored(close, CAPITAL, [step()], compat="l0")["qa"] == pytest.approx(0.1)
    assert scored(CAPITAL, CAPITAL, [step()], compat="l0")["qa"] == pytest.approx(1.0)
    settings = RewardSettings.model_validate({"compat": "l0", "qa_weights": {"high": 2.0}})
    assert settings.qa_weights == QaWeights(f1=0.0, exact=0.9, answered=0.1, high=2.0)
    assert RewardSettings.model_validate(settings.model_dump()) == settings
    assert RewardSettings().qa_weights == QaWeights(f1=0.4, exact=0.5, answered=0.1)
    assert not list(idle_settings(RewardSettings(compat="l0", qa=0)))  # weights that no user set are no reason to refuse


def test_qa_with_other_weights_and_a_range() -> None:
    weights = QaWeights(f1=0.2, exact=0.7, answered=0.1, low=1, high=10)
    assert l0.qa_reward(CAPITAL, [CAPITAL], weights) == pytest.approx(10)


@pytest.mark.parametrize(
    ("kinds", "value"),
    [(["stream", "result"], 1.0), (["stream", "error"], 0.5), (["error", "error"], 0.0), ([], 0.0), (None, 0.0)],
)
def test_execution(kinds: list[str] | None, value: float) -> None:
    assert facet("execution", [step(kinds=kinds)]) == pytest.approx([value])


@pytest.mark.parametrize(
    ("texts", "values"),
    [
        ([VALID], [1.0]),
        (["<code>print(40 + 2)</code>"], [0.0]),
        (["<think>a thought that is long enough</think>"], [0.0]),
        (["<think>   </think><code>print(40 + 2)</code>"], [0.0]),
        (["<think>a thought that is long enough</think><code>   </code>"], [0.0]),
        (["<think>a thought that is long</think>" + VALID], [0.0]),
        ([VALID + "<code>print(40 + 2)</code>"], [0.0]),
        ([VALID, "<code>print(40 + 2)</code>"], [0.5, 0.0]),
    ],
)
def test_format(texts: list[str], values: list[float]) -> None:
    assert facet("format", [step(text) for text in texts], compat="none") == pytest.approx(values)


@pytest.mark.parametrize("compat", ["none", "l0"])
def test_whole(compat: str) -> None:
    weights = {"qa": 0.6, "format": 0.2, "execution": 0.2}
    found = scored("London", CAPITAL, [step(kinds=["error"])], **weights, compat=compat)
    assert found["step_rewards"] == pytest.approx([0.26])


def test_a_silent_cell_earns_nothing_in_l0_and_execution_by_default() -> None:
    assert facet("execution", [step(kinds=[])], "l0") == [0.0]
    assert facet("execution", [step(kinds=[])], "none") == [1.0]


@pytest.mark.parametrize(("answer", "gold"), [("北京", "上海"), ("?!", "..."), ("Ω", "π")])
def test_answers_that_normalise_to_nothing_match_in_l0_and_not_by_default(answer: str, gold: str) -> None:
    assert l0.qa_reward(answer, [gold], QaWeights()) == pytest.approx(1.0)
    assert QaWeights().reward(exact_match(answer, [gold]), f1(answer, [gold])) == pytest.approx(0.1)
    assert scored(answer, gold, [step()], compat="l0")["em"] == 0.0  # what is reported is what is true


def test_an_empty_string_is_an_answer_in_l0_and_not_by_default() -> None:
    assert scored("", CAPITAL, [step()], compat="l0")["qa"] == pytest.approx(0.1)
    assert scored("", CAPITAL, [step()])["qa"] == 0.0


@pytest.mark.parametrize("answer", ["anything", "", None])
def test_an_empty_gold_pays_half_at_every_step_in_l0_and_nothing_by_default(answer: str | None) -> None:
    weights = {"qa": 1.0, "format": 0.0, "execution": 0.0}
    assert scored(answer, "", [step(), step()], **weights, compat="l0")["step_rewards"] == [0.5, 0.5]
    expected = 0.1 if answer else 0.0  # for having answered
    assert scored(answer, "", [step(), step()], **weights)["step_rewards"] == pytest.approx([0.0, expected])
