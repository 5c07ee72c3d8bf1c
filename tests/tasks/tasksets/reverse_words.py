"""A taskset of verifiers without tools: words to be written backwards."""

from collections.abc import Iterator
from typing import Any

import verifiers.v1 as vf

__all__ = ["ReverseTaskset"]
WORDS = ["amber", "bay", "cedar", "dune", "elm", "fjord", "glade", "heath", "isle", "jetty"]


class ReverseConfig(vf.TasksetConfig):
    most: int = 10
    upper: bool = False


class ReverseData(vf.TaskData):
    expected: str


class ReverseTask(vf.Task[ReverseData]):
    @vf.reward
    async def right(self, trace: Any) -> float:
        return float(trace.last_reply == self.data.expected)

    @vf.metric
    async def turns(self, trace: Any) -> float:
        return float(trace.num_turns)


class ReverseTaskset(vf.Taskset[ReverseTask, ReverseConfig]):
    def load(self) -> Iterator[ReverseTask]:
        for word in WORDS[: self.config.most]:
            shown = word.upper() if self.config.upper else word
            data = ReverseData(prompt=f"Write {shown} backwards.", system_prompt="Answer with one word.", expected=shown[::-1])
            yield ReverseTask(data, self.config.task)
