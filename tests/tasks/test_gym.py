"""Tasks of reasoning-gym: questions of two splits, and answers that their own scorers judge without harm."""

import json
import os
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from nbrl.tasks.environments import questions
from nbrl.tasks.environments.kinds import gym_battery
from nbrl.tasks.environments.kinds.gym import REFUSED, GymEnvironment
from nbrl.tasks.errors import ConfigError, RewardError
from nbrl.tasks.reward.rules import confined, scorer
from nbrl.tasks.reward.rules.judged import Judged
from nbrl.tasks.reward.rules.rule import GYM, RIGHT, judge
from nbrl.tasks.runs.recipes import load

EXECUTING = ("countdown", "spiral_matrix", "polynomial_multiplication", "string_insertion")


def data(*tasks: str, **fields: Any) -> GymEnvironment:
    return GymEnvironment.model_validate({"kind": "reasoning_gym", "tasks": tasks, "train": 6, "held_out": 4} | fields)


def rows(settings: GymEnvironment, split: str = "train") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = settings.load("environments.e").split(split).to_pylist()
    return found


def answered(row: dict[str, Any], answer: str | None) -> dict[str, Any]:
    return {**row, "answer": answer}


def test_questions_are_those_of_the_seed_the_tasks_in_turns_and_no_two_are_alike() -> None:
    settings = data("gcd", "chain_sum", train=40, held_out=20)
    tables, again = settings.load("environments.e"), settings.load("environments.e")
    train, held_out = tables.train, tables.held_out
    assert (again.train, again.held_out) == (train, held_out)
    assert settings.model_copy(update={"seed": 1}).load("environments.e").train != train
    assert train["ability"].to_pylist() == ["gcd", "chain_sum"] * 20
    asked = [*train["question"].to_pylist(), *held_out["question"].to_pylist()]
    assert len(set(asked)) == 60
    for table in (train, held_out):
        questions.check(table, "reasoning-gym")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tasks": ["gdc"]}, "reasoning-gym has no task 'gdc'; did you mean 'gcd'"),
        ({"settings": {"lcm": {}}}, "settings has lcm, which is none of environments.e.tasks"),
        (
            {"settings": {"gcd": {"min_value": 9, "max_value": 1}}},
            "e.settings.gcd: reasoning-gym refuses it: AssertionError",
        ),
        ({"settings": {"gcd": {"size_of": 1}}}, "environments.e.settings.gcd: reasoning-gym refuses it: TypeError"),
        *(({"tasks": [name]}, f"environments.e.tasks: {name} cannot be trained on: {why}") for name, why in REFUSED.items()),
    ],
)
def test_tasks_that_cannot_be_had_are_refused_with_the_reason(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        data("gcd").model_copy(update=fields).load("environments.e")


@pytest.mark.sandbox
def test_a_task_with_too_few_different_questions_says_so() -> None:
    few = {"min_numbers": 2, "max_numbers": 2, "min_value": 1, "max_value": 2}
    with pytest.raises(ConfigError, match="task gcd has too few different questions"):
        data("gcd", settings={"gcd": few}, train=50).load("environments.e")


@pytest.mark.sandbox
def test_answers_are_judged_by_the_tasks_own_scorers() -> None:
    asked = rows(data("gcd", *EXECUTING, train=10))
    right, wrong = [answered(row, row["answers"][0]) for row in asked], [answered(row, "zzz") for row in asked]
    silent = [answered(row, None) for row in asked]
    found = judge([*right, *wrong, *silent])
    assert found[:10] == [Judged(1.0, 1.0)] * 10
    assert all(judged.exact == 0 and judged.partial < 0.1 for judged in found[10:20])
    assert found[20:] == [Judged(0.0, 0.0)] * 10


@pytest.mark.more
@pytest.mark.sandbox
def test_an_answer_that_is_a_program_is_wrong_and_does_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    mark.touch()
    payloads = [
        f"__import__('os').remove('{mark}')",
        f"open('{mark}', 'w').write('x')",
        "9**9**9**9",
        "[0 for _ in ().__class__.__base__.__subclasses__()]",
        "(lambda: 1)()",
        "exit()",
        "\ud800",
        "x" * 1_000_000,
    ]
    asked = rows(data(*EXECUTING, train=len(EXECUTING)))
    found = judge(
        [answered(row, payload) for row in asked for payload in payloads] + [answered(asked[0], asked[0]["answers"][0])]
    )
    assert all(judged.exact == 0 for judged in found[:-1])
    assert found[-1] == Judged(1.0, 1.0)  # what came before took nothing from it
    assert mark.read_text() == ""


@pytest.mark.sandbox
def test_what_executes_an_answer_says_nothing_of_other_answers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As if the package executed any answer: what the child can reach is its own result."""
    program = tmp_path / "scorer.py"
    program.write_text(
        Path(scorer.__file__).read_text().replace("def is_literal", "def harmless(answer): return True\n\n\ndef is_literal")
    )
    monkeypatch.setattr(confined, "PROGRAM", program)
    lines = (
        "import os\nfor f in range(3, 40):\n try: os.write(f, b'{\"score\": 1.0}\\n' * 50)\n except OSError: pass\nos._exit(0)"
    )
    asked = rows(data("binary_matrix", train=1))[0]
    hostile = answered(asked, f"exec({lines!r})")
    found = judge([answered(asked, "wrong"), hostile, *[answered(asked, "wrong")] * 3, answered(asked, asked["answers"][0])])
    assert [judged.exact for judged in [found[0], *found[2:]]] == [0.0, 0.0, 0.0, 0.0, 1.0]


@pytest.mark.more
@pytest.mark.sandbox
def test_an_answer_that_is_compared_and_not_executed_may_hold_anything() -> None:
    asked = rows(data("codeio", train=40))
    assert any(not scorer.harmless(row["answers"][0]) for row in asked)
    assert judge([answered(row, row["answers"][0]) for row in asked]) == [Judged(1.0, 1.0)] * 40


@pytest.mark.parametrize(
    "text",
    [
        "f(1)",
        "print (1)",
        "(print)(1)",
        "[f][0](1)",
        "x.y",
        "x. y",
        "x .y",
        "__a",
        "ｅval(1)",
        "f\\\n(1)",
        "'a'(1)",
        "2(3)",
        "sin.f",
        "(exec #;\n (x))",
        "x.#\nreal",
        "x.#\nreal + (2)",
        "sin('%c' % 40)",
        "'%c' % 40",
        "'f(1)'",
        "f'{1}'",
        "[sin(x) for sin in [exec]]",
        "(sin:=N, sin(x))",
        "@f",
        "lambda sin: sin(x)",
        "sin(exec)",
        "sin (x)（1)",
        "ｅ(1)",
        "[" * 10_000 + "''",
    ],
)
def test_what_could_call_anything_is_not_harmless(text: str) -> None:
    assert not scorer.harmless(text)


@pytest.mark.parametrize(
    "text",
    [
        "1 + (2*3)",
        "x**2 + 3*x",
        "sin(x) + log (2)",
        "[[1, 0], [0, 1]]",
        "1.5",
        "(1, 2)",
        "Q _\n_ Q",
        "ABCD",
        "['A', \"B\"]",
        "sqrt(pi)*x!",
    ],
)
def test_answers_as_the_tasks_want_them_are_harmless(text: str) -> None:
    assert scorer.harmless(text)


FRAGILE = """
import sys
print("ready", flush=True)
for line in sys.stdin:
    if "deadly" in line:
        sys.exit(1)
    print('{"score": 1.0}', flush=True)
"""


@pytest.mark.sandbox
def test_an_answer_that_ends_the_program_costs_itself_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "fragile.py"
    program.write_text(FRAGILE)
    monkeypatch.setattr(confined, "PROGRAM", program)
    asked = [{"answer": answer} for answer in ("a", "deadly", "b", "deadly")]
    scores = [done.get("score", 0.0) for done in confined.compare(GYM, asked)]
    assert scores == [1.0, 0.0, 1.0, 0.0]


@pytest.mark.sandbox
def test_a_program_that_does_not_start_is_an_error_and_no_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "broken.py"
    program.write_text("raise ImportError('no such package')")
    monkeypatch.setattr(confined, "PROGRAM", program)
    with pytest.raises(RewardError, match="rule 'math' does not start: ImportError: no such package"):
        confined.compare("math", [{"answer": "1"}])


@pytest.mark.sandbox
@pytest.mark.long
def test_every_task_that_is_not_refused_pays_its_own_answers_and_no_nonsense() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    from reasoning_gym.factory import DATASETS

    names = [name for name in sorted(DATASETS) if name not in REFUSED and not gym_battery.paid(name)]
    asked = rows(data(*names, train=2 * len(names), held_out=1))
    right = [answered(row, row["answers"][0]) for row in asked if row["answers"] and row["answers"][0]]
    unpaid = {row["ability"] for row, judged in zip(right, judge(right), strict=True) if judged.partial < RIGHT}
    assert unpaid == set()
    nonsense = [answered(row, "zzz") for row in asked]
    pays = {row["ability"] for row, judged in zip(nonsense, judge(nonsense), strict=True) if judged.partial >= 0.1}
    assert pays == set()


@pytest.mark.sandbox
@pytest.mark.long
def test_what_is_kept_of_the_battery_is_what_it_finds() -> None:
    from reasoning_gym.factory import DATASETS

    kept = json.loads(gym_battery.KEPT.read_text())
    with_settings = {name for name in (*kept["paid"], *kept["unpaid"]) if " " in name}
    names = sorted({*DATASETS, *with_settings} - {*REFUSED})
    found = {name: gym_battery.found_paid(name.partition(" ")[0], name.partition(" ")[2] or "{}") for name in names}
    paid = {name: words for name, words in found.items() if words}
    wanted = {"version": version("reasoning-gym"), "paid": paid, "unpaid": [name for name in names if not found[name]]}
    assert kept == wanted


@pytest.mark.parametrize("recipe", ["mixed-cpu", "smollm2-135m-format"])
def test_the_verdicts_on_the_tasks_of_recipes_are_kept(recipe: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gym_battery, "found_paid", lambda task, settings: pytest.fail(f"{task} {settings} is not kept"))
    for environment in load(recipe).environments.values():
        if isinstance(environment, GymEnvironment):
            environment.model_copy(update={"train": 8, "held_out": 4}).load("e")


@pytest.mark.more
@pytest.mark.sandbox
def test_the_battery_finds_a_scorer_that_pays_without_reading() -> None:
    assert gym_battery.found_paid("coin_flip") == "the answer '0' is right on 20 of 20"
    assert gym_battery.found_paid("gcd") == ""


def test_a_task_that_pays_what_does_not_depend_on_the_question_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ConfigError,
        match=r"environments\.e\.tasks: coin_flip cannot be trained on, for its scorer is at fault: .* '0' is right on",
    ):
        data("coin_flip").load("environments.e")
    monkeypatch.setattr(gym_battery, "version", lambda _: "another")
    monkeypatch.setattr(gym_battery, "found_paid", lambda task, settings: f"the answer 7 to {task}")
    gym_battery.paid.cache_clear()
    with pytest.raises(ConfigError, match=r"gcd cannot be trained on, .* the answer 7 to gcd; leave it out"):
        data("gcd").load("environments.e")
    gym_battery.paid.cache_clear()
