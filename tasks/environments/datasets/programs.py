"""Data sets of programs to write, with tests that decide."""

import json
from collections.abc import Sequence

from nbrl.tasks.environments.datasets.published import Asked, Row


def human_eval(row: Row) -> Asked:
    """HumanEval (arXiv 2107.03374): a function to complete. The prompt may define helpers that solution and tests use."""
    question = f"Complete this function. The answer is the complete source text as a string.\n\n{row['prompt']}"
    tests = [f"{row['test']}\ncheck({row['entry_point']})"]
    solution = row["prompt"] + row["canonical_solution"]
    return Asked(row["task_id"].replace("/", "-"), question, [solution], "program", with_tests(tests, row["prompt"]))


def mbpp(row: Row) -> Asked:
    """MBPP (arXiv 2108.07732): the first test shows the function's name, and all decide."""
    question = (
        f"{row['text']} The answer is the source text of the function as a string. It must pass, among others, this test: "
        f"{row['test_list'][0]}"
    )
    return Asked(
        f"mbpp-{row['task_id']}", question, [row["code"]], "program", with_tests(row["test_list"], row["test_setup_code"])
    )


def with_tests(tests: Sequence[str], setup: str = "") -> str:
    """The reference of the rule `code`: tests that raise unless they pass, and what is run before the answer and the tests."""
    return json.dumps({"setup": setup, "tests": list(tests)})
