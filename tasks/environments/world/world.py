"""A generated world: towns, the people who serve them, their places and their animals; and questions about them.

Abilities take turns, so that any run of as many questions is even. A world is a function of (seed, split, n, abilities); names of
the two splits are disjoint by construction (see `names`), and who is whose is drawn from the seed, so nothing can be known by
heart.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from nbrl.infra.closed import ClosedModel
from nbrl.tasks.reward.rules.rule import Rule

Split = Literal["train", "held_out"]

_CONSONANTS = "bdfgklmnrstv"
HEADS = [consonant.upper() + vowel for consonant in _CONSONANTS for vowel in "aeo"]
ENDS = [consonant + ending for consonant in _CONSONANTS for ending in ("il", "un", "ur")]
_HELD_OUT_EVERY = 4
Ability = Literal["arithmetic", "one_hop", "two_hop", "notepad", "six_step"]
ABILITIES: tuple[Ability, ...] = ("arithmetic", "one_hop", "two_hop", "notepad")  # of a world for which none are named
NUMBERS: tuple[Ability, ...] = ("arithmetic", "notepad", "six_step")  # abilities whose answer is a number
OFFICES = ("mayor", "baker", "teacher", "rival")
PLACES = ("village", "river", "lake", "bridge")
ANIMALS = ("goats", "sheep", "hens", "bees")
Key = TypeVar("Key")
OPERATORS = {"plus": "+", "minus": "-", "times": "*"}


def split_of(name: str) -> Split:
    """Return the split a name belongs to. Raises ValueError for a name that is not made of these syllables."""
    return "held_out" if (HEADS.index(name[:2]) + ENDS.index(name[2:])) % _HELD_OUT_EVERY == 0 else "train"


def all_names(split: Split) -> list[str]:
    """Return every name of a split, in a fixed order."""
    names = (head + end for head in HEADS for end in ENDS)
    return [name for name in names if split_of(name) == split]


class WorldQuestion(ClosedModel):
    """One prompt of a data set, its accepted answers and the rule that compares with them."""

    id: str
    question: str
    answers: list[str]
    ability: str
    source: str
    rule: Rule


@dataclass(frozen=True)
class Problem:
    """A question with everything its author knows.

    `queries[i]` finds `findings[i]` in the corpus; `wrong_query` finds a true fact that does not help, `wrong_finding`.
    `expression` is Python that computes the answer where one is needed. `subject` is the first name or number of the question.
    """

    question: WorldQuestion
    ability: Ability
    subject: str
    queries: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()
    wrong_query: str = ""
    wrong_finding: str = ""
    expression: str = ""


@dataclass(frozen=True)
class World:
    """Problems, and the corpus that answers them in an order that says nothing."""

    problems: list[Problem]
    corpus: list[str]

    @property
    def questions(self) -> list[WorldQuestion]:
        return [problem.question for problem in self.problems]

    @classmethod
    def generate(cls, seed: int, split: Split, n: int, abilities: Sequence[Ability] = ABILITIES) -> "World":
        """Return n different questions; the same arguments give the same world. Raises ValueError for too large an n."""
        rng = random.Random(f"world {split} {seed}")
        author = _Author(rng, split, f"world-{split}-{seed}")
        problems = [author.write(index, abilities[index % len(abilities)]) for index in range(n)]
        return cls(problems, author.corpus())


def _next(left: list[Key]) -> Key:
    if not left:
        raise ValueError("the world has no more questions of this kind; generate fewer questions")
    return left.pop()


class _Author:
    """Draws the facts, then writes questions, none twice.

    A name is a town, a person or a thing, and only towns have offices and only people have places: a query of a relation and
    a name therefore fits exactly one fact best.
    """

    def __init__(self, rng: random.Random, split: Split, source: str) -> None:
        self._rng, self._source = rng, source
        names = all_names(split)
        rng.shuffle(names)
        third = len(names) // 3
        self._towns, self._people, things = names[:third], names[third : 2 * third], names[2 * third :]
        self._owners: dict[tuple[str, str], str] = {
            (relation, subject): value
            for relations, subjects, values in ((OFFICES, self._towns, self._people), (PLACES, self._people, things))
            for subject in subjects
            for relation, value in zip(relations, rng.sample(values, len(relations)), strict=True)
        }
        self._counts = {(animal, person): rng.randint(11, 99) for person in self._people for animal in ANIMALS}
        self._one_hop = list(self._owners)
        self._two_hop = [(outer, inner, town) for town in self._towns for inner in OFFICES for outer in PLACES]
        rng.shuffle(self._one_hop)
        rng.shuffle(self._two_hop)
        self._asked: set[str] = set()

    def corpus(self) -> list[str]:
        facts = [f"The {relation} of {subject} is {value}." for (relation, subject), value in self._owners.items()]
        facts += [f"{person} keeps {count} {animal}." for (animal, person), count in self._counts.items()]
        self._rng.shuffle(facts)
        return facts

    def write(self, index: int, ability: Ability) -> Problem:
        match ability:
            case "arithmetic":
                return self._arithmetic(index)
            case "one_hop":
                return self._look_up(index, _next(self._one_hop))
            case "two_hop":
                return self._look_up_twice(index, _next(self._two_hop))
            case "notepad":
                return self._keep_and_add(index)
            case "six_step":
                return self._keep_and_add_three(index)

    def _question(self, index: int, ability: Ability, text: str, answer: str) -> WorldQuestion:
        return WorldQuestion(
            id=f"{self._source}-{index:06d}",
            question=text,
            answers=[answer],
            ability=ability,
            source=self._source,
            rule="number" if ability in NUMBERS else "qa",
        )

    def _other(self, options: Sequence[str], but: str) -> str:
        return self._rng.choice([option for option in options if option != but])

    def _arithmetic(self, index: int) -> Problem:
        while True:
            numbers = [str(self._rng.randint(11, 99)) for _ in range(3)]
            words = self._rng.choices(list(OPERATORS), k=2)
            text = f"How much is {numbers[0]} {words[0]} {numbers[1]} {words[1]} {numbers[2]}?"
            expression = f"{numbers[0]}{OPERATORS[words[0]]}{numbers[1]}{OPERATORS[words[1]]}{numbers[2]}"
            # Built right here from integers and three operators.
            answer = str(eval(expression))
            if text not in self._asked and answer not in numbers:
                break
        self._asked.add(text)
        return Problem(self._question(index, "arithmetic", text, answer), "arithmetic", numbers[0], expression=expression)

    def _look_up(self, index: int, key: tuple[str, str]) -> Problem:
        relation, subject = key
        value = self._owners[key]
        wrong = self._other(OFFICES if relation in OFFICES else PLACES, relation)
        text = f"{'Who' if relation in OFFICES else 'What'} is the {relation} of {subject}?"
        return Problem(
            self._question(index, "one_hop", text, value),
            "one_hop",
            subject,
            queries=(f"{relation} of {subject}",),
            findings=(value,),
            wrong_query=f"{wrong} of {subject}",
            wrong_finding=self._owners[wrong, subject],
        )

    def _look_up_twice(self, index: int, key: tuple[str, str, str]) -> Problem:
        outer, inner, town = key
        person = self._owners[inner, town]
        value = self._owners[outer, person]
        wrong = self._other(OFFICES, inner)
        return Problem(
            self._question(index, "two_hop", f"What is the {outer} of the {inner} of {town}?", value),
            "two_hop",
            town,
            queries=(f"{inner} of {town}", f"{outer} of {person}"),
            findings=(person, value),
            wrong_query=f"{wrong} of {town}",
            wrong_finding=self._owners[wrong, town],
        )

    def _keep_and_add(self, index: int) -> Problem:
        while True:
            animal = self._rng.choice(ANIMALS)
            owners = self._rng.sample(self._people, 2)
            text = f"How many {animal} do {owners[0]} and {owners[1]} keep?"
            if text not in self._asked:
                break
        self._asked.add(text)
        counts = [self._counts[animal, owner] for owner in owners]
        wrong = self._other(ANIMALS, animal)
        return Problem(
            self._question(index, "notepad", text, str(sum(counts))),
            "notepad",
            owners[0],
            queries=tuple(f"{animal} of {owner}" for owner in owners),
            findings=tuple(str(count) for count in counts),
            wrong_query=f"{wrong} of {owners[0]}",
            wrong_finding=str(self._counts[wrong, owners[0]]),
            expression="+".join(str(count) for count in counts),
        )

    def _keep_and_add_three(self, index: int) -> Problem:
        """Write a question of five look-ups and a sum: two numbers are two hops away, one is a hop away, two must be kept."""
        while True:
            animal, offices = self._rng.choice(ANIMALS), self._rng.choices(OFFICES, k=2)
            towns, third = self._rng.sample(self._towns, 2), self._rng.choice(self._people)
            served = [f"the {office} of {town}" for office, town in zip(offices, towns, strict=True)]
            people = [self._owners[key] for key in zip(offices, towns, strict=True)]
            text = f"How many {animal} do {served[0]}, {served[1]} and {third} keep?"
            if text not in self._asked and len({*people, third}) == len(served) + 1:
                break
        self._asked.add(text)
        first, second, last = (str(self._counts[animal, person]) for person in (*people, third))
        queries = [
            query
            for office, town, person in zip(offices, towns, people, strict=True)
            for query in (f"{office} of {town}", f"{animal} of {person}")
        ]
        wrong = self._other(ANIMALS, animal)
        return Problem(
            self._question(index, "six_step", text, str(int(first) + int(second) + int(last))),
            "six_step",
            third,
            queries=(*queries, f"{animal} of {third}"),
            findings=(people[0], first, people[1], second, last),
            wrong_query=f"{wrong} of {third}",
            wrong_finding=str(self._counts[wrong, third]),
            expression=f"{first}+{second}+{last}",
        )
