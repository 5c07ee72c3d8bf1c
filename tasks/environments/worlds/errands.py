"""Three questions at once about an invented country, none of which needs the others: three agents can look for the answers."""

import random
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from nbrl.tasks.own import Question, Score, ScoredChild, Tasks, Trajectory

Split = Literal["train", "held_out"]
HEADS = [consonant.upper() + vowel for consonant in "bdfgklmnrstv" for vowel in "aeo"]
ENDS = [consonant + ending for consonant in "bdfgklmnrstv" for ending in ("il", "un", "ur")]
OFFICES = ("mayor", "baker", "teacher", "rival")
PLACES = ("village", "river", "lake", "bridge")
HELD_OUT_EVERY = 4
TOGETHER = 3


class Country:
    """Who serves each town, and the places of each person, drawn by a seed; the names of the two splits are others."""

    def __init__(self, seed: int, split: Split) -> None:
        rng = random.Random(f"errands {split} {seed}")
        numbers = range(len(HEADS) * len(ENDS))
        names = [
            HEADS[number // len(ENDS)] + ENDS[number % len(ENDS)]
            for number in numbers
            if ((number // len(ENDS) + number) % HELD_OUT_EVERY == 0) == (split == "held_out")
        ]
        rng.shuffle(names)
        third = len(names) // 3
        self.towns, people, things = names[:third], names[third : 2 * third], names[2 * third :]
        self.served = {
            (office, town): person for town in self.towns for office, person in zip(OFFICES, rng.sample(people, 4), strict=True)
        }
        self.has = {
            (place, person): thing for person in people for place, thing in zip(PLACES, rng.sample(things, 4), strict=True)
        }

    def facts(self) -> list[str]:
        """Return a sentence for each fact."""
        return [f"The {what} of {whose} is {which}." for (what, whose), which in {**self.served, **self.has}.items()]


class Errands(Tasks):
    """Questions of two look-ups each, three together."""

    def __init__(self, seed: int = 0, train: int = 256, held_out: int = 128) -> None:
        self._seed, self._counts = seed, {"train": train, "held_out": held_out}
        self._countries: dict[Split, Country] = {split: Country(seed, split) for split in ("train", "held_out")}

    def questions(self, split: Split) -> Iterable[Question]:
        country, rng = self._countries[split], random.Random(f"questions {split} {self._seed}")
        for _ in range(self._counts[split]):
            three = [
                {"place": rng.choice(PLACES), "office": rng.choice(OFFICES), "town": town}
                for town in rng.sample(country.towns, TOGETHER)
            ]
            for each in three:
                each["person"] = country.served[each["office"], each["town"]]
                each["answer"] = country.has[each["place"], each["person"]]
                each["text"] = f"What is the {each['place']} of the {each['office']} of {each['town']}?"
            yield Question(" ".join(each["text"] for each in three), three, ability="errands")

    def corpus(self) -> Iterable[str]:
        return sorted({fact for country in self._countries.values() for fact in country.facts()})

    def score(self, trajectory: Trajectory, reference: Any) -> Score:
        """Pay a third for each answer at its place."""
        said, wanted = _parts(trajectory.answer), [each["answer"] for each in reference]
        right = sum(one == other for one, other in zip(said, wanted, strict=False))
        return Score(success=said == wanted, value=right / TOGETHER, facets={"right": right})

    def score_child(self, child: ScoredChild, trajectory: Trajectory, reference: Any) -> float:
        """Pay for the right answer to one of the questions."""
        wanted = {each["text"]: each["answer"] for each in reference}
        return float(child.answer is not None and wanted.get(child.task) == child.answer.strip())

    def demonstrate(self, question: Question, rng: random.Random, good: bool) -> Sequence[tuple[str, str]]:
        """Send three agents; or, without `good`, look up oneself, not always to the end."""
        three = question.reference
        if good:
            sent = ", ".join(f"agent({each['text']!r})" for each in three)
            code = f"import asyncio\nsaid = await asyncio.gather({sent})\nsubmit_final_answer(', '.join(said))"
            return [("send three agents", code)]
        first = ("look up three", _looked(f"{each['office']} of {each['town']}" for each in three))
        if rng.random() < 0.5:
            return [first, ("enough, stop here", _submitted(each["person"] for each in three))]
        second = ("one more hop to go", _looked(f"{each['place']} of {each['person']}" for each in three))
        return [first, second, ("here is the answer", _submitted(each["answer"] for each in three))]

    def demonstrate_child(self, task: str, question: Question, rng: random.Random, good: bool) -> Sequence[tuple[str, str]]:
        """Look up twice."""
        each = next(each for each in question.reference if each["text"] == task)
        return [
            ("look it up first", _looked([f"{each['office']} of {each['town']}"])),
            ("one more hop to go", _looked([f"{each['place']} of {each['person']}"])),
            ("here is the answer", _submitted([each["answer"]])),
        ]


def _parts(answer: str | None) -> list[str]:
    return [part.strip() for part in (answer or "").split(",")]


def _looked(queries: Iterable[str]) -> str:
    return "\n".join(f"print(search('{query}'))" for query in queries)


def _submitted(answers: Iterable[str]) -> str:
    return f"submit_final_answer('{', '.join(answers)}')"
