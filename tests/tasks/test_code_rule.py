"""Answers that are Python source, judged by tests that they never see: right ones, wrong ones, and attacks."""

import json
import math
from collections import Counter, OrderedDict, defaultdict, deque
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbrl.tasks.environments.kinds.gym_battery import CONSTANTS
from nbrl.tasks.environments.kinds.question_files import FilesEnvironment
from nbrl.tasks.errors import ConfigError, RewardError
from nbrl.tasks.reward.rules.code import judge as code_judge
from nbrl.tasks.reward.rules.code import program
from nbrl.tasks.reward.rules.code.reference import complaint, reference_of
from nbrl.tasks.reward.rules.code.values import DEPTH, UnsupportedError, ValueTooLargeError, decode, encode
from nbrl.tasks.reward.rules.judged import Judged
from nbrl.tasks.reward.rules.rule import judge
from tests.tasks.code_answers import ATTACKS, HONEST, SEEKING, SETUP

RIGHT, WRONG = Judged(1.0, 1.0), Judged(0.0, 0.0)
DOUBLE = reference_of(["assert double(2) == 4", "assert double(-3) == -6", "assert double('ab') == 'abab'"])


def judged(reference: str, *answers: str) -> list[Judged]:
    assert complaint(reference) == ""
    return judge([{"rule": "code", "answer": answer, "answers": [], "reference": reference} for answer in answers])


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.complex_numbers(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple) | st.dictionaries(st.text(), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(value=PLAIN)
def test_a_plain_value_comes_back_from_json_as_it_was(value: Any) -> None:
    back = decode(json.loads(json.dumps(encode(value))))
    assert repr(back) == repr(value)


@pytest.mark.parametrize(
    "value",
    [
        {1, 2},
        frozenset("ab"),
        Counter("hello"),
        deque([1, 2]),
        OrderedDict(b=1, a=2),
        bytearray(b"x"),
        range(3, 9, 2),
        {(1, 2): {3: [4]}, None: ()},
        1 << 20_000,
        float("inf"),
        -0.0,
    ],
    ids=lambda value: type(value).__name__,
)
def test_containers_and_large_numbers_keep_their_type(value: Any) -> None:
    back = decode(json.loads(json.dumps(encode(value))))
    assert (back, type(back), str(back)[:9] if isinstance(value, float) else "") == (
        value,
        type(value),
        str(value)[:9] if isinstance(value, float) else "",
    )


def test_what_has_no_plain_form_is_refused() -> None:
    assert math.isnan(decode(json.loads(json.dumps(encode(float("nan"))))))
    assert decode(encode(defaultdict(list, {1: [2]}))) == {1: [2]}
    assert next(decode(encode(each for each in "ab"))) == "a"
    for value in (object(), len, int, [print], {1: object()}):
        with pytest.raises(UnsupportedError):
            encode(value)
    nested: list[Any] = []
    for _ in range(DEPTH + 1):
        nested = [nested]
    itself: list[Any] = []
    itself.append(itself)
    for value in (nested, itself, [0] * 300_000):
        with pytest.raises(ValueTooLargeError):
            encode(value)


@pytest.mark.sandbox
def test_all_tests_must_pass_and_the_share_that_does_is_partly_right() -> None:
    answers = {
        "def double(x):\n    return x * 2": RIGHT,
        "```python\ndef double(x):\n    return x + x\n```": RIGHT,
        "Here it is:\n\n```py\ndef double(x):\n    return x + x\n```\nIt adds the two.": RIGHT,
        "1. Add:\n    ```\n    def double(x):\n        return x + x\n    ```": RIGHT,
        "    def double(x):\n        return x + x": RIGHT,
        "\ufeffdef double(x):\n    return x + x": RIGHT,
        'def double(x):\n    """Adds.\n\n```\n    pass\n```\n"""\n    return x + x': RIGHT,
        "One:\n```\ndef double(x):\n    return x + x\n```\nor\n```\ndef double(x):\n    return 2 * x\n```": WRONG,
        "double = lambda x: 2 * x": RIGHT,
        "def helper(x): return x + x\ndef double(x, times=2): return helper(x)": RIGHT,
        "def double(x):\n    return abs(x) * 2 if x != 'ab' else 'abab'": Judged(0.0, 2 / 3),
        "def double(x):\n    return 4": Judged(0.0, 1 / 3),
        "def double(x) return x": WRONG,
        "I do not know": WRONG,
        "def triple(x): return x": WRONG,
        "class double(int): pass": WRONG,
        "": WRONG,
    }
    assert dict(zip(answers, judged(DOUBLE, *answers), strict=True)) == answers


@pytest.mark.more
@pytest.mark.sandbox
def test_no_answer_of_the_battery_is_right() -> None:
    assert set(judged(DOUBLE, *CONSTANTS)) == {WRONG}


@pytest.mark.more
@pytest.mark.sandbox
def test_what_honest_answers_return_and_raise_reaches_the_tests() -> None:
    rows = [
        {"rule": "code", "answer": answer, "answers": [], "reference": reference_of([test], SETUP)}
        for test, answer in HONEST.items()
    ]
    assert [complaint(str(row["reference"])) for row in rows] == [""] * len(rows)
    assert dict(zip(HONEST, judge(rows), strict=True)) == dict.fromkeys(HONEST, RIGHT)


DEFINED = "def double(x): return x * 2\n"  # what would be right by itself


SLOW = ("fork bomb", "loop", "loop at load", "huge", "many", "no end")
QUICK = [each for each in ATTACKS if each not in SLOW]
FOURS = [QUICK[start : start + 4] for start in range(0, len(QUICK), 4)]


@pytest.mark.sandbox
@pytest.mark.parametrize(
    "attacks", [*FOURS, *(pytest.param([each], marks=pytest.mark.more) for each in SLOW)], ids=lambda attacks: ", ".join(attacks)
)
def test_attacks_earn_nothing_and_what_comes_after_them_is_right(attacks: list[str]) -> None:
    *found, after = judged(DOUBLE, *(ATTACKS[each] for each in attacks), DEFINED)
    assert dict(zip(attacks, found, strict=True)) == dict.fromkeys(attacks, WRONG)
    assert after == RIGHT


@pytest.mark.sandbox
@pytest.mark.attack(
    tried="Answers that sleep, to hold up the judges of code",
    wall="what neither computes nor waits for a processor for three seconds ends",
    effect="wrong",
)
def test_answers_that_sleep_are_wrong_long_before_their_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_judge, "WALL_S", 1e6)
    answers = [f"import time\ndef double(x):\n    {wait}" for wait in ("time.sleep(1000)", "while True: time.sleep(0.4)")]
    assert judged(DOUBLE, *answers, DEFINED) == [WRONG, WRONG, RIGHT]


@pytest.mark.sandbox
def test_tests_and_what_they_expect_are_nowhere_in_the_sandbox_of_an_answer() -> None:
    mark = "mark_" + "0123456789abcdef" * 2
    test = f"assert double(2) == {mark!r}"
    assert judged(reference_of([test]), SEEKING) == [WRONG]
    assert judged(reference_of([test], f"HERE = {mark!r}"), SEEKING) == [RIGHT], "it finds what is there"


@pytest.mark.sandbox
def test_a_test_that_catches_everything_does_not_pass_by_a_call_without_a_result() -> None:
    reference = reference_of(["try:\n    double(1)\nexcept BaseException:\n    pass", "assert all(map(double, [1, 2]))"])
    answers = ["def double(x): return object()", "import os\ndef double(x): os._exit(0)", "def double(x): raise StopIteration"]
    assert judged(reference, *answers) == [WRONG, WRONG, Judged(0.0, 0.5)]


@pytest.mark.sandbox
@pytest.mark.parametrize(
    ("setup", "test", "fault"),
    [
        ("1 / 0", "assert double(1)", "the setup fails: ZeroDivisionError"),
        ("import os\nos._exit(0)", "assert double(1)", "call nothing in time, or end their process"),
        ("", "assert {}['x'] == double(1)", "a test fails before it calls the answer: KeyError"),
        ("", "assert double(print)", "a test gives double an argument that it cannot have"),
    ],
)
def test_tests_that_do_not_run_are_a_fault_whatever_the_answer(setup: str, test: str, fault: str) -> None:
    (found,) = judged(reference_of([test], setup), DEFINED + "import sys")
    assert fault in found.fault


@pytest.mark.sandbox
def test_a_program_that_does_not_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "SHARED", {})
    with pytest.raises(RewardError, match=r"answer_side.py, which judges code, does not start: ModuleNotFoundError"):
        judged(DOUBLE, DEFINED)


@pytest.mark.parametrize(
    ("tests", "setup", "entry_points", "wrong"),
    [
        ([], "", [], "has no tests"),
        (["assert f(1"], "", ["f"], "has a test 1 that is no Python"),
        (["assert f(1)"], "import", ["f"], "has a setup that is no Python"),
        (["assert 1"], "", [], "has tests that call no function"),
        (["assert f(1)", "assert True"], "", [], "has a test 2 that calls none of its entry points"),
        (["def check(candidate):\n    assert candidate(1)"], "", ["f"], r"none of its entry points; end it with check(f)"),
        (["assert f(1)"], "", ["f", "not a name"], "has the entry point 'not a name'"),
        (["assert len(1)"], "", ["len"], "has the entry point 'len'"),
        (["assert f(1) == math.pi"], "", [], "has a test 1 that uses 'math', which neither its setup nor"),
        (["assert f(Node(1))"], "x = Node(2)", ["f"], "has a setup that uses 'Node'"),
    ],
)
def test_tests_that_cannot_be_used_are_refused(tests: list[str], setup: str, entry_points: list[str], wrong: str) -> None:
    assert wrong in complaint(reference_of(tests, setup, entry_points))


def test_entry_points_are_the_functions_that_nothing_else_defines() -> None:
    tests = ["def close(a): return a\nassert close(f(1)) == Counter(sorted(g(2)))", "assert f(3)"]
    assert json.loads(reference_of(tests, "from collections import Counter"))["entry_points"] == ["f", "g"]


def test_questions_of_a_file_have_their_tests_in_columns(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    rows = [
        {"question": "Write double(x).", "tests": ["assert double(1) == 2"], "setup": "import math", "rule": "code"},
        {"question": "Write half(x).", "tests": ["assert half(2) == 1"], "entry_points": ["half"], "rule": "code"},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    environment = FilesEnvironment(kind="files", train=path, held_out=path)
    table = environment.load("environments.e").train
    assert table["answers"].to_pylist() == [[], []]
    assert [json.loads(each) for each in table["reference"].to_pylist()] == [
        {"setup": "import math", "tests": ["assert double(1) == 2"], "entry_points": ["double"]},
        {"setup": "", "tests": ["assert half(2) == 1"], "entry_points": ["half"]},
    ]
    for tests, wrong in [
        (["assert f("], r"question 'q-000000' has a test 1 that is no Python"),
        ([3], "row 0 has 3 in its tests"),
    ]:
        path.write_text(json.dumps({"question": "?", "tests": tests, "rule": "code"}) + "\n")
        with pytest.raises(ConfigError, match=wrong):
            environment.load("environments.e")
    path.write_text(json.dumps({"question": "?", "test": "assert f(1)", "rule": "code"}) + "\n")
    with pytest.raises(ConfigError, match=r"lacks the column 'tests', which the rule code needs; did you mean 'test'\?"):
        environment.load("environments.e")
