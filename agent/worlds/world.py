"""A generated world: facts nobody can know by heart, and questions about them.

Four abilities in rotation, so that any run of four questions is even. A world is a function of (seed, split, n); names of the two
splits are disjoint by construction (see `names`).
"""

import random
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict

from agent.worlds.names import Namer, Split

Ability = Literal["arithmetic", "one_hop", "two_hop", "notepad"]
ABILITIES: tuple[Ability, ...] = ("arithmetic", "one_hop", "two_hop", "notepad")
RELATIONS = {
    "mayor": "Who",
    "baker": "Who",
    "teacher": "Who",
    "rival": "Who",
    "village": "What",
    "river": "What",
    "lake": "What",
    "bridge": "What",
}
ANIMALS = ("goats", "sheep", "hens", "bees")
OPERATORS = {"plus": "+", "minus": "-", "times": "*"}


class Question(BaseModel):
    """One prompt of a data set and its accepted answers."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    question: str
    answers: list[str]
    ability: str
    source: str


@dataclass(frozen=True)
class Problem:
    """A question with everything its author knows.

    `queries[i]` finds exactly `findings[i]` in the corpus; `wrong_query` finds a true fact that does not help, `wrong_finding`.
    `expression` is Python that computes the answer where one is needed. `subject` is the first name or number of the question.
    """

    question: Question
    ability: Ability
    subject: str
    facts: tuple[str, ...] = ()
    queries: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()
    wrong_query: str = ""
    wrong_finding: str = ""
    expression: str = ""


@dataclass(frozen=True)
class World:
    """Problems and the corpus that answers them, in an order that says nothing about which fact belongs to which question."""

    problems: list[Problem]
    corpus: list[str]

    @property
    def questions(self) -> list[Question]:
        return [problem.question for problem in self.problems]

    @classmethod
    def generate(cls, seed: int, split: Split, n: int) -> "World":
        """The same arguments give the same world. Raises ValueError when n is beyond the names there are."""
        rng = random.Random(f"world {split} {seed}")
        author = _Author(rng, Namer(rng, split), f"world-{split}-{seed}")
        problems = [author.write(index, ABILITIES[index % len(ABILITIES)]) for index in range(n)]
        corpus = [fact for problem in problems for fact in problem.facts]
        rng.shuffle(corpus)
        return cls(problems, corpus)


def _relation_fact(relation: str, subject: str, value: str) -> str:
    return f"The {relation} of {subject} is {value}."


def _count_fact(owner: str, count: int, animal: str) -> str:
    return f"{owner} keeps {count} {animal}."


class _Author:
    def __init__(self, rng: random.Random, name: Namer, source: str) -> None:
        self._rng, self._name, self._source = rng, name, source

    def write(self, index: int, ability: Ability) -> Problem:
        match ability:
            case "arithmetic":
                return self._arithmetic(index)
            case "one_hop":
                return self._one_hop(index)
            case "two_hop":
                return self._two_hop(index)
            case "notepad":
                return self._notepad(index)

    def _question(self, index: int, ability: Ability, text: str, answer: str) -> Question:
        return Question(id=f"{self._source}-{index:06d}", question=text, answers=[answer], ability=ability, source=self._source)

    def _arithmetic(self, index: int) -> Problem:
        first, second, third = (self._rng.randint(11, 99) for _ in range(3))
        words = self._rng.choices(list(OPERATORS), k=2)
        text = f"How much is {first} {words[0]} {second} {words[1]} {third}?"
        expression = f"{first}{OPERATORS[words[0]]}{second}{OPERATORS[words[1]]}{third}"
        # Built by this function from integers and three operators.
        answer = str(eval(expression))
        return Problem(self._question(index, "arithmetic", text, answer), "arithmetic", str(first), expression=expression)

    def _one_hop(self, index: int) -> Problem:
        relation, other = self._rng.sample(list(RELATIONS), 2)
        subject, value, wrong = self._name(), self._name(), self._name()
        text = f"{RELATIONS[relation]} is the {relation} of {subject}?"
        return Problem(
            self._question(index, "one_hop", text, value),
            "one_hop",
            subject,
            facts=(_relation_fact(relation, subject, value), _relation_fact(other, subject, wrong)),
            queries=(f"{relation} of {subject}",),
            findings=(value,),
            wrong_query=f"{other} of {subject}",
            wrong_finding=wrong,
        )

    def _two_hop(self, index: int) -> Problem:
        inner, outer, other = self._rng.sample(list(RELATIONS), 3)
        subject, middle, value, wrong, aside = (self._name() for _ in range(5))
        text = f"{RELATIONS[outer]} is the {outer} of the {inner} of {subject}?"
        return Problem(
            self._question(index, "two_hop", text, value),
            "two_hop",
            subject,
            facts=(
                _relation_fact(inner, subject, middle),
                _relation_fact(outer, subject, wrong),
                _relation_fact(outer, middle, value),
                _relation_fact(other, middle, aside),
            ),
            queries=(f"{inner} of {subject}", f"{outer} of {middle}"),
            findings=(middle, value),
            wrong_query=f"{outer} of {subject}",
            wrong_finding=wrong,
        )

    def _notepad(self, index: int) -> Problem:
        animal, other = self._rng.sample(ANIMALS, 2)
        owners = (self._name(), self._name())
        counts = [self._rng.randint(11, 99) for _ in owners]
        aside = [self._rng.randint(11, 99) for _ in owners]
        text = f"How many {animal} do {owners[0]} and {owners[1]} keep?"
        facts = [_count_fact(owner, count, animal) for owner, count in zip(owners, counts, strict=True)]
        facts += [_count_fact(owner, count, other) for owner, count in zip(owners, aside, strict=True)]
        return Problem(
            self._question(index, "notepad", text, str(sum(counts))),
            "notepad",
            owners[0],
            facts=tuple(facts),
            queries=tuple(f"{animal} of {owner}" for owner in owners),
            findings=tuple(str(count) for count in counts),
            wrong_query=f"{other} of {owners[0]}",
            wrong_finding=str(aside[0]),
            expression="+".join(str(count) for count in counts),
        )
