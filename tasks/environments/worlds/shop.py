"""A shop's customer service: a customer, orders, and rules for money back. The customer is simulated, and may be wrong.

`{kind: own, place: "nbrl.tasks.environments.worlds.shop:Shop"}`
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from nbrl.tasks.own import Question, Score, Session, Trajectory, World, WorldRefuses, tool

THINGS = ("lamp", "mug", "chair", "radio", "kettle", "clock")
NAMES = ("Ada", "Ben", "Eva", "Ida", "Leo", "Tom")
STATES = ("new", "used", "broken")
REFUND_DAYS, REPAIR_DAYS, MOST_DAYS = 30, 60, 90
RULES = (
    "Look the order up; what it says counts, not what the customer says. "
    f"Refund within {REFUND_DAYS} days what is new or broken. "
    f"Repair within {REPAIR_DAYS} days what is broken and too old for a refund. "
    "Refuse all else, and every order of another customer."
)
HELD_OUT = 1 << 20
MOST_CALLS = 30
LOOKED = 0.2  # of the reward, for a wrong decision about an order that was looked up
LOOKS = 0.3  # how often one who guesses has looked
Decision = Literal["refund", "repair", "refuse"]
Ability = Literal["stated", "asked", "stranger"]


@dataclass(frozen=True)
class Order:
    number: int
    customer: str
    thing: str
    days: int
    state: str


@dataclass(frozen=True)
class Case:
    """What a customer wants, made from its seed, and what the rules say of it."""

    customer: str
    order: Order
    claims: str
    right: Decision

    @classmethod
    def make(cls, seed: int, ability: str) -> "Case":
        rng = random.Random(f"case {seed}")
        customer, state = rng.choice(NAMES), rng.choice(STATES)
        owner = customer if ability != "stranger" else rng.choice([name for name in NAMES if name != customer])
        days = rng.randint(1, REFUND_DAYS) if rng.random() < 0.5 else rng.randint(REFUND_DAYS + 1, MOST_DAYS)
        order = Order(rng.randint(100, 999), owner, rng.choice(THINGS), days, state)
        claims = rng.choice(STATES) if rng.random() < 0.3 else state
        return cls(customer, order, claims, ruled(order, customer))


def ruled(order: Order, customer: str) -> Decision:
    """Return what RULES say."""
    if order.customer != customer or order.state == "used":
        return "refuse"
    if order.days <= REFUND_DAYS:
        return "refund"
    return "repair" if order.state == "broken" and order.days <= REPAIR_DAYS else "refuse"


class Talk(Session):
    """One talk with a customer; it ends with a decision."""

    def __init__(self, case: Case) -> None:
        self._case, self._calls, self._looked = case, 0, False
        self._decision = ""

    @tool
    def rules(self) -> str:
        """Return the shop's rules."""
        self._count()
        return RULES

    @tool
    def order(self, number: int) -> str:
        """Return what is known of an order.

        Args:
            number: the order's number
        """
        self._count()
        if number != self._case.order.number:
            raise WorldRefuses("there is no such order")
        self._looked = True
        found = self._case.order
        return f"{found.customer}: {found.thing}, {found.days:02d} days, {found.state}"

    @tool
    def ask(self, text: str) -> str:
        """Ask the customer, and return the answer.

        Args:
            text: what you say
        """
        self._count()
        if "order" in text.lower() or "number" in text.lower():
            return f"It is order {self._case.order.number}."
        return f"My {self._case.order.thing} is {self._case.claims}. I want my money back!"

    @tool
    def decide(self, decision: Decision) -> str:
        """Say what happens: refund, repair or refuse. This ends the talk.

        Args:
            decision: refund, repair or refuse
        """
        self._count()
        self._decision, self.done = decision, True
        return f"{decision}: noted"

    def outcome(self) -> Any:
        return {"decision": self._decision, "right": self._case.right, "looked": self._looked, "calls": self._calls}

    def _count(self) -> None:
        self._calls += 1
        self.done = self.done or self._calls >= MOST_CALLS


class Shop(World):
    """Cases by seed. Of the abilities, in `stated` the customer says the order's number, in `asked` only on request, and in
    `stranger` it is the number of another's order.
    """

    def __init__(
        self, seed: int = 0, train: int = 512, held_out: int = 128, abilities: Sequence[Ability] = ("stated", "asked")
    ) -> None:
        if not abilities or set(abilities) - {"stated", "asked", "stranger"}:
            raise ValueError("abilities are stated, asked and stranger, at least one of them")
        self._counts = {"train": (seed, train), "held_out": (seed + HELD_OUT, held_out)}
        self._abilities = tuple(abilities)

    def questions(self, split: Literal["train", "held_out"]) -> Iterable[Question]:
        first, count = self._counts[split]
        for number in range(count):
            ability = self._abilities[number % len(self._abilities)]
            case = Case.make(first + number, ability)
            named = "" if ability == "asked" else f" (order {case.order.number})"
            text = f"Ticket {first + number}. {case.customer}: my {case.order.thing}{named} is {case.claims}. Money back!"
            yield Question(text, {"seed": first + number, "ability": ability}, ability=ability)

    def start(self, question: Question, seed: int) -> Talk:
        return Talk(Case.make(question.reference["seed"], question.reference["ability"]))

    def score(self, trajectory: Trajectory, reference: Any) -> Score:
        """Pay for the right decision about an order that was looked up; one that was guessed is no success."""
        ended = trajectory.outcome
        right = ended["looked"] and ended["decision"] == ended["right"]
        decided = ended["looked"] and bool(ended["decision"])
        return Score(success=right, value=1.0 if right else LOOKED * decided, facets={"looked": ended["looked"]})

    def demonstrate(self, question: Question, rng: random.Random, good: bool) -> Sequence[tuple[str, str]]:
        """Look the order up and decide by the rules; or, without `good`, decide at random, mostly without a look."""
        case = Case.make(question.reference["seed"], question.reference["ability"])
        ask = [("I need its number", "ask('order number?')")] if question.ability == "asked" else []
        look = [*ask, ("look the order up", f"order({case.order.number})")] if good or rng.random() < LOOKS else []
        if good:
            return [*look, ("so the rules say", f"decide('{case.right}')")]
        decision = rng.choice(("refund", "repair", "refuse"))
        return [*look, ("let me guess", f"decide('{decision}')")]
