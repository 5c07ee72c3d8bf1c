"""Data sets of programs to write, with tests that decide."""

from nbrl.tasks.environments.datasets.published import Asked, Row
from nbrl.tasks.reward.rules.code import with_tests


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
