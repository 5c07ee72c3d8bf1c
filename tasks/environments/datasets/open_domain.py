"""Data sets of questions about the world with short answers."""

from nbrl.infra.parse import json_value
from nbrl.tasks.environments.datasets.published import Asked, Row


def nq_open(row: Row) -> Asked:
    """Natural Questions without their articles (arXiv 1906.00300): `question`, and all accepted `answer`s."""
    return Asked("", f"{row['question'].rstrip('?')}?", list(row["answer"]), "one_hop")


def trivia_qa(row: Row) -> Asked:
    """TriviaQA (arXiv 1705.03551): the answer's value and its aliases, the names of an article of Wikipedia."""
    answer = row["answer"]
    return Asked(row["question_id"], row["question"], _distinct([answer["value"], *answer["aliases"]]), "one_hop")


def pop_qa(row: Row) -> Asked:
    """PopQA (arXiv 2212.10511): `possible_answers` is a list within a string."""
    return Asked(f"popqa-{row['id']}", row["question"], _distinct(json_value(row["possible_answers"])), "one_hop")


def simple_qa(row: Row) -> Asked:
    """SimpleQA (arXiv 2411.04368), whose one answer is meant for a model that grades; words and F1 are stricter."""
    return Asked("", row["problem"], [row["answer"]], "one_hop")


def bamboogle(row: Row) -> Asked:
    """Bamboogle (arXiv 2210.03350): 125 questions of two hops that no page answers."""
    return Asked("", row["Question"], [row["Answer"]], "two_hop")


def _distinct(answers: list[str]) -> list[str]:
    """Each answer that says something once, in their order."""
    return list(dict.fromkeys(answer.strip() for answer in answers if answer.strip()))
