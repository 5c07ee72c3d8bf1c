"""Programs as answers: tests that they never see decide, and nothing that they do decides for them."""

import pytest

from nbrl.tasks.reward.rules.code import with_tests
from nbrl.tasks.reward.rules.rule import Judged, judge

pytestmark = pytest.mark.sandbox
TESTS = with_tests(
    ["assert f(2) == 4", "assert f([1]) == [1, 1]", "assert f('a') == 'aa'", "assert f((1,), k={1: None}) == (1, 1)"]
)


def scores(*answers: str, reference: str = TESTS) -> list[float]:
    rows = [{"answer": answer, "answers": [""], "rule": "code", "reference": reference} for answer in answers]
    return [judged.partial for judged in judge(rows)]


def test_the_share_of_tests_that_pass_is_the_score_and_all_make_an_answer_right() -> None:
    good = "def f(x, k=None):\n    return 2 * x"
    row = {"answer": good, "answers": [""], "rule": "code", "reference": TESTS}
    assert judge([row]) == [Judged(1.0, 1.0)]
    assert scores("def f(x): return 2 * x", "def f(x): return 4", "x = 1", "def f(", "") == [0.75, 0.25, 0.0, 0.0, 0.0]


def test_exceptions_are_those_of_the_answer() -> None:
    raised = with_tests(["try:\n    f(0)\nexcept ZeroDivisionError:\n    pass\nelse:\n    assert False"])
    answers = ["def f(x): return 1 / x", "def f(x): return 0", "class E(Exception): pass\ndef f(x): raise E"]
    assert scores(*answers, reference=raised) == [1.0, 0.0, 0.0]


SAME = "class Same{}:\n    def __eq__(self, other): return True\n"
EVERY = "import os, struct\nfor n in range(3, 99):\n    try: os.write(n, {})\n    except OSError: pass"
FORGERIES = {
    "an object that equals everything": SAME.format("") + "def f(*a, **k): return Same()",
    "a number that equals everything": SAME.format("(int)") + "def f(*a, **k): return Same(9)",
    "a representation that is code": "class R:\n    def __repr__(self): return 'exit()'\ndef f(*a, **k): return R()",
    "its end": "import os\nos._exit(0)",
    "its end in a call": "import os\ndef f(*a, **k): os._exit(0)",
    "an exit": "raise SystemExit",
    "results on every pipe": EVERY.format(r"b'[\"f\"]\n(True, 4)\n' * 9"),
    "a score on every pipe": EVERY.format("struct.pack('d', 1.0)"),
    "the scorer's own output": "import os\nopen(f'/proc/{os.getppid()}/fd/1', 'w').write('1.0\\n' * 9)",
    "its parents' memory": "import os\nopen(f'/proc/{os.getppid()}/mem', 'r+b').write(b'x')",
    "its parents' end": "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)",
    "all processes' end": "import os, signal\nos.kill(-1, signal.SIGKILL)",
    "no end": "while True: pass",
    "no end in a call": "def f(*a, **k):\n    while True: pass",
    "a bomb of processes": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "all memory": "x = [0] * 10**12",
    "a flood": "print('x' * 10**9)\ndef f(*a, **k): return 'x' * 10**9",
}


@pytest.mark.parametrize("answer", FORGERIES.values(), ids=FORGERIES)
def test_no_answer_pays_itself_or_costs_the_next_one(answer: str) -> None:
    forged, honest = scores(answer, "def f(x, k=None): return 2 * x")
    assert forged < 0.5  # one test may pass by chance
    assert honest == 1.0
