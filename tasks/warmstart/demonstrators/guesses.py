"""Demonstrators that show how to act and to call, and nothing else: what they look up and answer is drawn at random.

Queries, names and numbers are drawn from what the agent sees, with answers no better than such a draw is. A policy trained on
them acts in the right form; what a question asks for it can only learn from rewards.
"""

import random
import re

from nbrl.agent.messages import Prompt
from nbrl.agent.policy import Generation
from nbrl.agent.settings import AgentSettings
from nbrl.agent.tokens.tokenizer import ChatTokenizer
from nbrl.tasks.environments.world.names import ENDS, HEADS
from nbrl.tasks.environments.world.world import ANIMALS, OFFICES, PLACES
from nbrl.tasks.warmstart.demonstrators.move import Move

NAME = re.compile(rf"\b(?:{'|'.join(HEADS)})(?:{'|'.join(ENDS)})\b")
NUMBER = re.compile(r"\d+")
QUOTED = re.compile(r'"([^"\n]+)"')
RELATIONS = (*OFFICES, *PLACES, *ANIMALS)
# One calculation of each is drawn: {numbers} are those of the question, {number} is one of them, {text} and {letter} are quoted.
OF_NUMBERS = (
    "math.gcd({numbers})",
    "math.lcm({numbers})",
    "math.prod([{numbers}])",
    "sum([{numbers}])",
    "max({numbers}, 0)",
    "bin({number}).count('1')",
    "len(str({number}))",
)
OF_TEXTS = ("{text}.count({letter})", "len({text})", "{text}.find({letter})", "len({text}.split())")
MOST_NUMBERS = 6


def calculation(question: str, rng: random.Random) -> Move:
    """A calculation with what the question names, of a kind that is drawn at random."""
    numbers, quoted = NUMBER.findall(question), QUOTED.findall(question)
    letters, texts = [each for each in quoted if len(each) == 1], [each for each in quoted if len(each) > 1]
    if letters and texts:
        code = rng.choice(OF_TEXTS).format(text=repr(texts[0]), letter=repr(letters[0]))
    else:
        shown = numbers[:MOST_NUMBERS] or [str(rng.randint(2, 99))]
        code = rng.choice(OF_NUMBERS).format(numbers=", ".join(shown), number=rng.choice(shown))
    return Move("compute something and submit it", f"import math\nsubmit_final_answer({code})")


class GuessingPolicy:
    """Looks up facts at random, notes some, and submits something that is in view. For the generated world."""

    def __init__(self, lookups: int, rng: random.Random, settings: AgentSettings, tokenizer: ChatTokenizer) -> None:
        self._left, self._rng, self._grammar, self._tokenizer = lookups, rng, settings.grammar, tokenizer

    async def generate(self, prompt: Prompt, max_tokens: int, seed: int) -> Generation:
        *before, _ = prompt.messages  # the last one is the tail, with the steps that are left
        view = "\n".join(message.body for message in before if message.role == "user")
        ids = self._tokenizer.encode_action(self._move(view).text(self._grammar))
        return Generation(ids, [0.0] * len(ids), "script", "stop")

    def _move(self, view: str) -> Move:
        names, numbers = list(dict.fromkeys(NAME.findall(view))), list(dict.fromkeys(NUMBER.findall(view)))
        relations = [each for each in RELATIONS if re.search(rf"\b{each}\b", view)]
        if self._left and names and relations:
            self._left -= 1
            return self._lookup(self._rng.choice(relations), self._rng.choice(names), names + numbers)
        return Move("submit something", f"submit_final_answer({self._anything(names, numbers)})")

    def _lookup(self, relation: str, name: str, seen: list[str]) -> Move:
        search = f"search('{relation} of {name}')"
        if self._rng.random() < 1 / 4:
            return Move("note something and look something up", f"notepad.add_facts(['{self._rng.choice(seen)}'])\n{search}")
        return Move("look something up", search)

    def _anything(self, names: list[str], numbers: list[str]) -> str:
        """A name, a number, or two or three numbers with operators between them."""
        kinds = [kind for kind, found in (("name", names), ("number", numbers), ("sum", numbers[1:])) if found]
        match self._rng.choice(kinds or ["nothing"]):
            case "name":
                return f"'{self._rng.choice(names)}'"
            case "number":
                return self._rng.choice(numbers)
            case "sum":
                chosen = self._rng.sample(numbers, min(len(numbers), self._rng.choice((2, 3))))
                return "".join(f"{self._rng.choice('+-*')}{term}" for term in sorted(chosen, key=numbers.index))[1:]
        return str(self._rng.randint(0, 99))
