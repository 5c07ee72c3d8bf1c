"""Demonstrators that show how to act and to call, and nothing else: what they answer is drawn at random.

They look up some of what a question needs, then submit something of what they see, or a calculation with it, with answers no
better than such a draw is. A policy trained on them acts in the right form; which answer is right it can only learn from rewards.
"""

import random
import re
from collections import deque
from collections.abc import Sequence

from nbrl.agent.messages import Prompt
from nbrl.agent.policy import Generation
from nbrl.agent.settings import AgentSettings
from nbrl.agent.tokens.tokenizer import ChatTokenizer
from nbrl.tasks.environments.kinds.gym import GymEnvironment
from nbrl.tasks.environments.world.world import ENDS, HEADS, Problem, WorldQuestion
from nbrl.tasks.warmstart.demonstrators.play import Move

NAME = re.compile(rf"\b(?:{'|'.join(HEADS)})(?:{'|'.join(ENDS)})\b")
NUMBER = re.compile(r"\d+")
QUOTED = re.compile(r'"([^"\n]+)"')
# Of one of these a calculation is drawn: {numbers} are those of the question, {text} and {letter} are quoted in it.
OF_A_NUMBER = (
    "bin({numbers}).count('1')",
    "sum(map(int, str({numbers})))",
    "len(str({numbers}))",
    "math.isqrt({numbers})",
    "{numbers} % 10",
)
OF_NUMBERS = ("math.gcd({numbers})", "math.lcm({numbers})", "math.prod([{numbers}])", "sum([{numbers}])", "max({numbers})")
OF_TEXTS = ("{text}.count({letter})", "len({text})", "{text}.find({letter})", "len({text}.split())")
MOST_NUMBERS = 4
NOTES = 1 / 4  # share of the look-ups that come with a note
TASK = "chain_sum"
SUMS = {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 2}


def calculation(question: str, rng: random.Random) -> Move:
    """Return a calculation with what the question names, of a kind that is drawn at random."""
    numbers, quoted = NUMBER.findall(question), QUOTED.findall(question)
    letters, texts = [each for each in quoted if len(each) == 1], [each for each in quoted if len(each) > 1]
    if letters and texts:
        code = rng.choice(OF_TEXTS).format(text=repr(texts[0]), letter=repr(letters[0]))
    else:
        long = [each for each in numbers if len(each) > 1]  # a question may speak of 1 bits
        shown = [_without_zeros(each) for each in (long or numbers)[:MOST_NUMBERS]] or [str(rng.randint(2, 99))]
        code = rng.choice(OF_NUMBERS if len(shown) > 1 else OF_A_NUMBER).format(numbers=", ".join(shown))
    return Move("compute something and submit it", f"import math\nsubmit_final_answer({code})")


def _without_zeros(digits: str) -> str:
    """Return a number as Python reads it."""
    return digits.lstrip("0") or "0"


class GuessingPolicy:
    """Looks up some of the queries, notes something now and then, and submits something that is in view."""

    def __init__(self, queries: Sequence[str], rng: random.Random, settings: AgentSettings, tokenizer: ChatTokenizer) -> None:
        self._queries, self._rng, self._grammar, self._tokenizer = deque(queries), rng, settings.grammar, tokenizer

    async def generate(self, prompt: Prompt, max_tokens: int, seed: int) -> Generation:
        *before, _ = prompt.messages  # the last one is the tail, with the steps that are left
        view = "\n".join(message.body for message in before if message.role == "user")
        ids = self._tokenizer.encode_action(self._move(view).text(self._grammar))
        kept = ids[:max_tokens]
        return Generation(kept, [0.0] * len(kept), "script", "stop" if kept == ids else "length")

    def _move(self, view: str) -> Move:
        names, numbers = list(dict.fromkeys(NAME.findall(view))), list(dict.fromkeys(map(_without_zeros, NUMBER.findall(view))))
        if not self._queries:
            return Move("submit something", f"submit_final_answer({self._anything(names, numbers)})")
        search = f"search('{self._queries.popleft()}')"
        if self._rng.random() < NOTES:
            return Move(
                "note something and look something up", f"notepad.add_facts(['{self._rng.choice(names + numbers)}'])\n{search}"
            )
        return Move("look something up", search)

    def _anything(self, names: list[str], numbers: list[str]) -> str:
        """Return a name, a number, or all numbers with operators between them."""
        kinds = [kind for kind, found in (("name", names), ("number", numbers), ("sum", numbers[1:])) if found]
        match self._rng.choice(kinds):
            case "name":
                return f"'{self._rng.choice(names)}'"
            case "number":
                return self._rng.choice(numbers)
        return "".join(f"{self._rng.choice('+-*')}{number}" for number in numbers[:MOST_NUMBERS])[1:]


def sums(seed: int, n: int) -> list[Problem]:
    """Return n different sums; the same arguments give the same ones. Raises ConfigError without the package."""
    if n == 0:
        return []
    settings = {TASK: SUMS}
    environment = GymEnvironment(kind="reasoning_gym", tasks=(TASK,), settings=settings, seed=seed, train=n, held_out=1)
    return [_problem(row) for row in environment.drawn("sums").train.to_pylist()]


def _problem(row: dict[str, str]) -> Problem:
    """Return the expression behind the colon, before an equals sign."""
    expression = row["question"].rpartition(": ")[2].removesuffix(" =").replace(" ", "")
    first = expression[: max(expression.rfind(sign) for sign in "+-")]
    asked = WorldQuestion(
        id=row["id"], question=row["question"], answers=list(row["answers"]), ability=TASK, source=row["source"], rule="number"
    )
    return Problem(asked, "arithmetic", first, expression=expression)
