"""Letters to a shop, more of them than a small context holds: counting the complaints takes a reading of each."""

import random
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from nbrl.tasks.own import Question, Score, ScoredChild, Tasks, Trajectory

PEOPLE = ("Ada", "Ben", "Eva", "Ida", "Jon", "Leo", "Mia", "Ned", "Pia", "Tom")
THINGS = ("lamp", "mug", "chair", "radio", "kettle", "clock", "coat", "drum", "fan", "tent")
COMPLAINTS = (
    "came broken", "came late", "never came", "has a crack", "is too small", "makes noise", "lost a screw", "smells of oil",
    "is not mine", "stopped after a day",
)  # fmt: skip
THANKS = (
    "came early", "is lovely", "came safely", "fits well", "shines", "was worth it", "makes us happy", "smells of wood",
    "is just right", "lasted for years",
)  # fmt: skip
FILE = "letters.txt"
NEAR = 8  # from so many off, a count is worth nothing
TASK = "complaint? "


class Letters(Tasks):
    """How many of the `letters` in a file complain? `train` and `held_out` files by seed."""

    def __init__(self, seed: int = 0, train: int = 512, held_out: int = 128, letters: int = 40) -> None:
        if not 4 <= letters <= 1000:
            raise ValueError(f"letters is {letters}; take 4 to 1000")
        self._seed, self._counts = seed, {"train": train, "held_out": held_out}
        self._letters = letters

    def questions(self, split: Literal["train", "held_out"]) -> Iterable[Question]:
        for number in range(self._counts[split]):
            letters, complaints = self._written(f"{split} {self._seed + number}")
            yield Question(
                f"How many of the letters in {FILE} complain?",
                {"complaints": complaints, "others": [each for each in letters if each not in complaints]},
                ability="count",
                files=[(FILE, "\n".join(letters).encode())],
            )

    def score(self, trajectory: Trajectory, reference: Any) -> Score:
        """Pay more the nearer the count is, and all of it for the right one."""
        try:
            off = abs(int((trajectory.answer or "").strip()) - len(reference["complaints"]))
        except ValueError:
            return Score(success=False, value=0.0)
        return Score(success=off == 0, value=1.0 if off == 0 else max(0.0, 0.5 * (1 - off / NEAR)), facets={"off": off})

    def score_child(self, child: ScoredChild, trajectory: Trajectory, reference: Any) -> float:
        """Pay for the right answer about one letter."""
        said, letter = (child.answer or "").strip().lower(), child.task.removeprefix(TASK).strip()
        known = {**dict.fromkeys(reference["complaints"], "yes"), **dict.fromkeys(reference["others"], "no")}
        return float(known.get(letter) == said)

    def demonstrate(self, question: Question, rng: random.Random, good: bool) -> Sequence[tuple[str, str]]:
        """Ask about each letter; or, without `good`, about the first few, or about none."""
        ask = (
            f"import asyncio\nsaid = await asyncio.gather(*[llm('{TASK}' + each, 4) for each in {{}}])\n"
            "submit_final_answer(said.count('yes'))"
        )
        if good:
            return [("ask about each of them", ask.format(f"open('{FILE}')"))]
        if rng.random() < 0.5:
            return [("some of them will do", ask.format(f"list(open('{FILE}'))[:9]"))]
        return [("my guess is good", f"submit_final_answer({rng.randint(0, self._letters)})")]

    def demonstrate_child(self, task: str, question: Question, rng: random.Random, good: bool) -> str:
        """Say whether a letter complains; without `good`, now and then anything."""
        if good or rng.random() < 0.6:
            return "yes" if task.removeprefix(TASK).strip() in question.reference["complaints"] else "no"
        return rng.choice(("yes", "no"))

    def _written(self, seed: str) -> tuple[list[str], list[str]]:
        """Return the letters of a seed, and those of them that complain. No two are the same."""
        rng = random.Random(f"letters {seed}")
        share, letters, complaints = rng.uniform(0.2, 0.8), dict[str, bool](), list[str]()
        while len(letters) < self._letters:
            complains = rng.random() < share
            said = rng.choice(COMPLAINTS if complains else THANKS)
            number = f" {rng.randint(10, 99)}" if len(letters) > len(PEOPLE) * 10 else ""
            letters.setdefault(f"{rng.choice(PEOPLE)}{number}: my {rng.choice(THINGS)} {said}.", complains)
        complaints = [letter for letter, complains in letters.items() if complains]
        return list(letters), complaints
