"""A taskset of verifiers with tools: a counter for each trajectory, whose state tools and scorers share, and a price list."""

import random
import threading
from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf

__all__ = ["ShopTaskset"]
MEETING = threading.Barrier(2)


class ShopState(vf.State):
    sold: int = 0
    closed: bool = False


class CounterConfig(vf.ToolsetConfig):
    price: int = 3


class ShopData(vf.TaskData):
    item: str
    amount: int


class Counter(vf.Toolset[CounterConfig, ShopState]):
    async def setup_task(self, task: Any) -> None:
        self.left = {task.item: task.amount}
        self.random = random.Random(task.amount)

    @vf.tool
    async def sell(self, item: str, count: int = 1) -> int:
        """Sell so many of an item and return how many are left.

        The item must be here.
        """
        if item not in self.left:
            raise ValueError(f"there is no {item}")
        self.left[item] -= count
        self.state.sold += count
        return self.left[item]

    @vf.tool
    async def draw(self) -> list[int]:
        """Draw numbers by lot."""
        return [self.random.randrange(100) for _ in range(3)]

    @vf.tool
    def close(self) -> str:
        """Close the shop."""
        self.state.closed = True
        return "closed"

    @vf.tool
    def meet(self) -> str:
        """Wait until another shop meets, too."""
        MEETING.wait(60)
        return "met"

    @vf.tool
    async def steal(self, path: str) -> str:
        """Read a file of the host."""
        raise OSError(2, f"no such file in {__file__}", path)


class Prices(vf.Toolset[vf.SharedToolsetConfig]):
    async def setup(self) -> None:
        self.prices = {f"item{number}": number for number in range(100)}

    @vf.tool
    def price(self, item: str) -> int:
        """Return the price of an item."""
        return self.prices[item]


class ShopTaskConfig(vf.TaskConfig):
    counter: CounterConfig = CounterConfig()


class ShopTask(vf.Task[ShopData, ShopState, ShopTaskConfig]):
    @classmethod
    def toolsets(cls, config: ShopTaskConfig) -> list[Any]:
        return [Counter(config.counter)]

    @vf.stop
    async def closed(self, trace: vf.Trace) -> bool:
        return bool(trace.state.closed)

    @vf.reward
    async def sold(self, trace: Any) -> float:
        return float(trace.state.sold) / self.data.amount

    @vf.metric
    async def calls(self, trace: Any) -> float:
        return float(sum(len(message.tool_calls or []) for message in trace.assistant_messages))


class ShopConfig(vf.TasksetConfig):
    task: ShopTaskConfig = ShopTaskConfig()


class ShopTaskset(vf.Taskset[ShopTask, ShopConfig]):
    INFINITE = True

    @classmethod
    def toolsets(cls, config: ShopConfig) -> list[Any]:
        return [Prices(vf.SharedToolsetConfig())]

    def load(self) -> Iterator[ShopTask]:
        number = 0
        while True:
            data = ShopData(prompt=f"Sell all of item{number}, then close.", item=f"item{number}", amount=number % 7 + 2)
            yield ShopTask(data, self.config.task)
            number += 1
