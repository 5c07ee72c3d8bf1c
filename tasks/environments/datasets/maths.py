"""Data sets of mathematics, from school to competitions."""

import re

from nbrl.tasks.environments.datasets.published import Asked, Row

BOXED = re.compile(r"\\(?:boxed|fbox)\b\s*")


def gsm8k(row: Row) -> Asked:
    """GSM8K (arXiv 2110.14168): the number stands after "####" at the end of the solution, with commas in thousands."""
    _, marker, answer = row["answer"].rpartition("####")
    if not marker:
        raise ValueError("the solution has no line that begins with ####")
    return Asked("", row["question"], [answer.strip()], "arithmetic")


def competition(row: Row) -> Asked | None:
    """MATH (arXiv 2103.03874): the answer is in the last \\boxed of the solution; a few solutions have none."""
    answer = boxed(row["solution"])
    return Asked("", row["problem"], [answer], _ability(row["type"])) if answer else None


def math_500(row: Row) -> Asked:
    """The 500 problems of MATH that arXiv 2305.20050 evaluates on, with their answers."""
    name = row["unique_id"].removesuffix(".json").replace("/", "-")
    return Asked(name, row["problem"], [row["answer"]], _ability(row["subject"]))


def aime(row: Row) -> Asked:
    """AIME 2024: the answer is an integer from 0 to 999."""
    return Asked(row["ID"], row["Problem"], [str(row["Answer"])], "competition")


def boxed(solution: str) -> str:
    """What the last \\boxed of a solution holds, braces within it included; empty if there is none."""
    starts = list(BOXED.finditer(solution))
    if not starts:
        return ""
    rest = solution[starts[-1].end() :]
    if not rest.startswith("{"):  # \boxed 5
        return rest.split("$")[0].strip(" .")
    depth = 0
    for place, character in enumerate(rest):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return rest[1:place].strip()
    return ""


def _ability(subject: str) -> str:
    """The subject as a part of a metric's name."""
    return re.sub(r"[^a-z0-9]+", "_", subject.lower())
