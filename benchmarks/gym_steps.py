"""Demonstrations of two tasks of reasoning-gym in several steps, so that their trajectories can be branched; for branching.py."""

import random
import re
from collections.abc import Iterable, Sequence
from typing import Literal

from reasoning_gym.factory import create_dataset

from nbrl.tasks.own import Question, Tasks

SETTINGS = {
    "chain_sum": {"min_terms": 3, "max_terms": 3, "min_digits": 1, "max_digits": 2},
    "gcd": {"min_numbers": 2, "max_numbers": 2, "min_value": 6, "max_value": 99},
}
SEED = 3_000_000  # apart from the questions of trainings


class GymSteps(Tasks):
    """Questions as reasoning-gym writes them, the tasks in turns."""

    def __init__(self, seed: int = 0, train: int = 1000) -> None:
        self._seed, self._count = SEED + seed, train

    def questions(self, split: Literal["train", "held_out"]) -> Iterable[Question]:
        count = self._count if split == "train" else 4
        drawn = [create_dataset(task, seed=self._seed, size=count // 2, **settings) for task, settings in SETTINGS.items()]
        for entries in zip(*drawn, strict=True):
            for task, entry in zip(SETTINGS, entries, strict=True):
                yield Question(entry["question"], answers=[entry["answer"]], rule="number", ability=task)

    def demonstrate(self, question: Question, rng: random.Random, good: bool) -> Sequence[tuple[str, str]]:
        """Compute step by step and submit what came out; or, without `good`, guess, stop early or compute something else."""
        if question.ability == "gcd":
            return _gcd(question, rng, good)
        terms = re.findall(r"\d+|[+-]", question.text.partition(":")[2])
        half, rest = " ".join(terms[:3]), " ".join(terms[3:])
        between = str(eval(half))
        first = ("add the first two", half)
        end = ("that is the sum", f"submit_final_answer({question.answers[0]})")
        if good:
            return [first, ("now the last one", f"{between} {rest}"), end]
        habit = rng.choice(("guess", "early", "skip"))
        if habit == "guess":
            return [("my guess is good", f"submit_final_answer({terms[0]})")]
        if habit == "early":
            return [first, ("enough, stop here", f"submit_final_answer({between})")]
        return [("skip the first", f"{terms[2]} {rest}"), ("that will do", f"submit_final_answer({eval(f'{terms[2]} {rest}')})")]


def _gcd(question: Question, rng: random.Random, good: bool) -> Sequence[tuple[str, str]]:
    one, two = re.findall(r"\d+", question.text)
    if good:
        looked = ("python knows it", f"import math\nmath.gcd({one}, {two})")
        return [looked, ("that is the divisor", f"submit_final_answer({question.answers[0]})")]
    if rng.random() < 0.5:
        return [("my guess is good", f"submit_final_answer({rng.randint(1, 9)})")]
    rest = int(one) % int(two)
    return [("take what is left", f"{one} % {two}"), ("that will do", f"submit_final_answer({rest})")]
