"""Published data sets: their addresses, their rows, and how a row becomes a question."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from nbrl.infra.parse import json_value
from nbrl.tasks.reward.rules.rule import Rule

Row = Mapping[str, Any]
BOXED = re.compile(r"\\(?:boxed|fbox)\b\s*")


class PublishedQuestion(NamedTuple):
    """A question with its accepted answers, or a reference where its rule has one. `id` is empty where the data set has none."""

    id: str
    question: str
    answers: list[str]
    ability: str
    reference: str = ""


def no_passages(row: Row) -> list[str]:
    return []


@dataclass(frozen=True)
class Published:
    """A data set on the hub, at `repository` with the configuration `configuration`.

    `splits` are those with answers. `ask` turns a row into a question, or into None if it has no answer that could be compared;
    it raises KeyError, TypeError, ValueError or IndexError for a row of another schema. `passages` are what the row brings to
    search in.
    """

    repository: str
    configuration: str
    splits: tuple[str, ...]
    rule: Rule
    licence: str
    ask: Callable[[Row], PublishedQuestion | None]
    passages: Callable[[Row], list[str]] = field(default=no_passages)


def gaia(row: Row) -> PublishedQuestion | None:
    """Read a row of GAIA (arXiv 2311.12983). None for a question with a file, which needs a folder of the files."""
    answer, level = row["Final answer"], str(row["Level"])
    if row["file_name"] or answer.strip() == "?":
        return None
    return PublishedQuestion(row["task_id"], row["Question"], [answer], f"level_{level}")


def hotpot_qa(row: Row) -> PublishedQuestion:
    """Read a row of HotpotQA (arXiv 1809.09600), of bridges and comparisons. Its own files name the id `_id`."""
    return PublishedQuestion(row["_id"] if "_id" in row else row["id"], row["question"], [row["answer"]], row["type"])


def two_wiki(row: Row) -> PublishedQuestion:
    """Read a row of 2WikiMultihopQA (arXiv 2011.01060). Its own files name the id `_id`."""
    return PublishedQuestion(row["_id"] if "_id" in row else row["id"], row["question"], [row["answer"]], row["type"])


def musique(row: Row) -> PublishedQuestion | None:
    """Read a row of MuSiQue (arXiv 2108.00573). Questions without an answer in its passages are left out; ids begin with the
    hops.
    """
    if not row["answerable"]:
        return None
    answers = list(dict.fromkeys([row["answer"], *row["answer_aliases"]]))
    return PublishedQuestion(row["id"].replace("__", "-"), row["question"], answers, row["id"].partition("_")[0])


def titled_sentences(row: Row) -> list[str]:
    """Return the passages of HotpotQA and 2WikiMultihopQA: lists of titles and of sentences, or pairs of both."""
    context = row["context"]
    titled = zip(context["title"], context["sentences"], strict=True) if isinstance(context, dict) else context
    return [f"{title}: {' '.join(sentence.strip() for sentence in sentences)}" for title, sentences in titled]


def paragraphs(row: Row) -> list[str]:
    """Return the passages of MuSiQue."""
    return [f"{each['title']}: {each['paragraph_text']}" for each in row["paragraphs"]]


def nq_open(row: Row) -> PublishedQuestion:
    """Read a row of Natural Questions without their articles (arXiv 1906.00300): `question`, and all accepted `answer`s."""
    return PublishedQuestion("", f"{row['question'].rstrip('?')}?", list(row["answer"]), "one_hop")


def trivia_qa(row: Row) -> PublishedQuestion:
    """Read a row of TriviaQA (arXiv 1705.03551): the answer's value and its aliases, the names of an article of Wikipedia."""
    answer = row["answer"]
    return PublishedQuestion(row["question_id"], row["question"], _distinct([answer["value"], *answer["aliases"]]), "one_hop")


def pop_qa(row: Row) -> PublishedQuestion:
    """Read a row of PopQA (arXiv 2212.10511): `possible_answers` is a list within a string."""
    return PublishedQuestion(f"popqa-{row['id']}", row["question"], _distinct(json_value(row["possible_answers"])), "one_hop")


def simple_qa(row: Row) -> PublishedQuestion:
    """Read a row of SimpleQA (arXiv 2411.04368), whose one answer is meant for a model that grades; words and F1 are stricter."""
    return PublishedQuestion("", row["problem"], [row["answer"]], "one_hop")


def bamboogle(row: Row) -> PublishedQuestion:
    """Read a row of Bamboogle (arXiv 2210.03350): 125 questions of two hops that no page answers."""
    return PublishedQuestion("", row["Question"], [row["Answer"]], "two_hop")


def _distinct(answers: list[str]) -> list[str]:
    """Return each answer that says something once, in their order."""
    return list(dict.fromkeys(answer.strip() for answer in answers if answer.strip()))


def gsm8k(row: Row) -> PublishedQuestion:
    """Read a row of GSM8K (arXiv 2110.14168): the number is after "####" at the end of the solution, with commas in thousands."""
    _, marker, answer = row["answer"].rpartition("####")
    if not marker:
        raise ValueError("the solution has no line that begins with ####")
    return PublishedQuestion("", row["question"], [answer.strip()], "arithmetic")


def competition(row: Row) -> PublishedQuestion | None:
    """Read a row of MATH (arXiv 2103.03874): the answer is in the last \\boxed of the solution; a few solutions have none."""
    answer = boxed(row["solution"])
    return PublishedQuestion("", row["problem"], [answer], _ability(row["type"])) if answer else None


def math_500(row: Row) -> PublishedQuestion:
    """Return the 500 problems of MATH that arXiv 2305.20050 evaluates on, with their answers."""
    name = row["unique_id"].removesuffix(".json").replace("/", "-")
    return PublishedQuestion(name, row["problem"], [row["answer"]], _ability(row["subject"]))


def aime(row: Row) -> PublishedQuestion:
    """Read a row of AIME 2024: the answer is an integer from 0 to 999."""
    return PublishedQuestion(row["ID"], row["Problem"], [str(row["Answer"])], "competition")


def boxed(solution: str) -> str:
    """Return what the last \\boxed of a solution holds, braces within it included; empty if there is none."""
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
    """Return the subject as a part of a metric's name."""
    return re.sub(r"[^a-z0-9]+", "_", subject.lower())
