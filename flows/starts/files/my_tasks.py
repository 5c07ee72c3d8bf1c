"""Questions and a score of your own; to see both: python my_tasks.py"""

from collections.abc import Iterable, Iterator
from typing import Any

from nbrl.tasks.own import Question, Score, Tasks, Trajectory

SHEEP = {"Karur": 46, "Masil": 30, "Bokun": 53, "Ralur": 87, "Bamun": 64}
PAIRS = {
    "train": [("Karur", "Masil"), ("Bokun", "Ralur"), ("Bamun", "Karur"), ("Masil", "Bokun")],
    "held_out": [("Ralur", "Bamun"), ("Karur", "Bokun")],
}


class Flocks(Tasks):
    """How many sheep two neighbours keep: an answer is paid the more, the closer it is."""

    def questions(self, split: str) -> Iterator[Question]:
        """Yield the questions to learn from, or those that are held out; `reference` is for `score` alone."""
        for one, other in PAIRS[split]:
            yield Question(f"How many sheep do {one} and {other} keep?", reference=SHEEP[one] + SHEEP[other])

    def corpus(self) -> Iterable[str]:
        """Return the passages that the tool `search` looks in."""
        return [f"{name} keeps {count} sheep." for name, count in SHEEP.items()]

    def score(self, trajectory: Trajectory, reference: Any) -> Score:
        """Return how good an answer is: `success` is what is reported, `value` from 0 to 1 is what is paid."""
        answer = trajectory.answer or ""
        off = abs(int(answer) - reference) if answer.isdecimal() else reference
        return Score(success=off == 0, value=max(0.0, 1 - off / reference))


if __name__ == "__main__":
    flocks = Flocks()
    for question in flocks.questions("train"):
        print(question.text, flocks.score(Trajectory(question.text, "task", "answered", "100"), question.reference))
