"""Finds tasks of reasoning-gym that pay answers that do not depend on the question, which a policy learns to give, and tasks that
do not always pay their own answers.

Each answer of a battery is given to the same items of a task, and the task's own scorer judges it. The verdicts on the release of
the package that nbrl was tested with are kept beside this file; those on another release are found when they are needed.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from nbrl.infra.parse import json_value
from nbrl.tasks.reward.rules import confined, number
from nbrl.tasks.reward.rules.rule import GYM, RIGHT

KEPT = Path(__file__).with_name("gym_battery.json")
ITEMS, SEED = 20, 5
SPARE = 2  # items on which what is taken from the question may be right besides, equal to the reference though written otherwise
MOST = 0.9  # of the whole reward, which no answer may earn on average that is seldom right
Entries = Sequence[dict[str, Any]]

_PLAIN = "0 1 2 -1 10 24 100 0.5 True False true false Yes No yes no None null nan inf x A B C D - . , ; # up L"
_BRACKETS = ["[]", "{}", "()", "[[]]", "[[0]]", '""', "''", '{"a": 1}', "0 0", "0,0", "1 2 3", "1/1", "x = 0", "True False", "\n"]
_WORDS = ["infeasible", "impossible", "not possible", "knight", "I do not know", "6*4*1*1", "1 + 1", "0*(1)", "lambda: 1"]
CONSTANTS = (*_PLAIN.split(), *_BRACKETS, *_WORDS)
TAKEN: dict[str, Callable[[Entries, int], str]] = {
    "the question itself": lambda entries, place: str(entries[place]["question"]),
    "the last line of the question": lambda entries, place: str(entries[place]["question"]).strip().splitlines()[-1],
    "the numbers of the question": lambda entries, place: " ".join(re.findall(r"-?\d+", entries[place]["question"])) or "0",
    "the answer to another question": lambda entries, place: str(entries[(place + 1) % len(entries)]["answer"]),
    "the answer to another question with zeros for its digits": lambda entries, place: re.sub(
        r"\d", "0", str(entries[(place + 1) % len(entries)]["answer"])
    ),
}


def battery(entries: Entries) -> dict[str, list[str]]:
    """Return answers to all entries by their description."""
    found = {f"the answer {answer!r}": [answer] * len(entries) for answer in CONSTANTS}
    return found | {name: [take(entries, place) for place in range(len(entries))] for name, take in TAKEN.items()}


@cache
def paid(task: str, settings: str = "{}") -> str:
    """Return what is right more often than the commonest reference of the task, though it does not depend on the question, or how
    often the task's own answer is wrong; or nothing.

    `settings` are the task's own, as JSON; of those in nbrl's recipes the verdicts are kept too. Raises RewardError if the
    program that scores does not start.
    """
    kept = json_value(KEPT.read_text(encoding="utf-8"))
    name = task if settings == "{}" else f"{task} {settings}"
    known = kept["version"] == version("reasoning-gym") and name in {*kept["paid"], *kept["unpaid"]}
    return str(kept["paid"].get(name, "")) if known else found_paid(task, settings)


def found_paid(task: str, settings: str = "{}") -> str:
    """Return the same as `paid`, by trying the battery."""
    from reasoning_gym.factory import create_dataset

    items = create_dataset(task, seed=SEED, size=ITEMS, **json_value(settings))
    entries = [json_value(json.dumps(items[place])) for place in range(ITEMS)]
    references = [_plain(str(entry["answer"])) for entry in entries]
    known = [text for text, entry in zip(references, entries, strict=True) if entry["answer"] is not None]
    commonest = max(Counter(known).values(), default=0)
    own = [str(entry["answer"]) for entry in entries]
    answers = {"own": own, **battery(entries)}
    reference = json.dumps({"task": task, "settings": json_value(settings), "entries": entries})
    verdicts = confined.compare(GYM, [{"answer": each, "reference": reference} for each in answers.values()])
    for (name, given), done in zip(answers.items(), verdicts, strict=True):
        scores: list[float] = done.get("scores", [])
        if name == "own":
            wrong = sum(score < RIGHT for score, entry in zip(scores, entries, strict=False) if entry["answer"] is not None)
            if wrong:
                return f"its own answer is wrong on {wrong} of {ITEMS}"
            continue
        right, mean = sum(score >= RIGHT for score in scores), sum(scores) / ITEMS
        same = sum(_plain(one) == other for one, other in zip(given, references, strict=True))
        if right > (max(commonest, same) + SPARE if name in TAKEN else commonest):
            return f"{name} is right on {right} of {ITEMS}"
        if mean >= MOST > max(commonest, same) / ITEMS:
            return f"{name} earns {mean:.2f} of 1 on average"
    return ""


def _plain(text: str) -> str:
    """Return an answer as scorers compare it that take other spellings too."""
    quantity = number.quantity(text)
    return str(quantity.value) if quantity and not quantity.unit and not quantity.share else text.strip().casefold()
