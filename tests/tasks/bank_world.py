"""A world for tests: an account that is empty at first, a target to reach, and ways to fail."""

import random
import time
from typing import Any

from nbrl.tasks.own import Question, Score, Session, Trajectory, World, WorldRefuses, tool


class Account(Session):
    def __init__(self, target: int, seed: int) -> None:
        self.balance, self.target, self.random, self.closed = 0, target, random.Random(seed), 0

    def observe(self) -> str:
        return f"The account holds {self.balance}."

    @tool
    def deposit(self, amount: int) -> int:
        """Add an amount and return the balance.

        Args:
            amount: above 0
        """
        if amount == 666:
            raise ValueError("the bank burns")
        if amount <= 0:
            raise WorldRefuses("the amount must be above 0")
        self.balance += amount
        self.done = self.balance == self.target
        return self.balance

    @tool
    async def draw(self) -> int:
        """Draw a number by lot."""
        return self.random.randrange(1000)

    @tool
    def wait(self, seconds: float) -> str:
        """Block for some seconds."""
        time.sleep(seconds)
        return "waited"

    def outcome(self) -> Any:
        return {"balance": self.balance, "target": self.target}


class Bank(World):
    def questions(self, split: str) -> Any:
        first = 0 if split == "train" else 100
        for number in range(first, first + 3):
            yield Question(f"Bring account {number} to {number + 10}.", reference={"target": number + 10}, max_steps=4)

    def start(self, question: Question, seed: int) -> Account:
        return Account(question.reference["target"], seed)

    def score(self, trajectory: Trajectory, reference: Any) -> Score:
        reached = trajectory.outcome == {"balance": reference["target"], "target": reference["target"]}
        return Score(success=reached, value=min(1.0, trajectory.outcome["balance"] / reference["target"]))
