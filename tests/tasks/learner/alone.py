"""The only rank of a learner, without a process group."""

from collections.abc import Callable
from typing import Any, TypeVar

from nbrl.infra.storage import Storage
from nbrl.tasks.learner.checkpoint.local_store import LocalCheckpoints

Value = TypeVar("Value")


class Alone:
    """As Ranks, where there is only this process; errors stay what they are."""

    rank, count = 0, 1

    def apart(self) -> "Alone":
        return self

    def on_first(self, work: Callable[[], None]) -> None:
        work()

    def from_first(self, work: Callable[[], Value]) -> Value:
        return work()

    def gathered(self, value: Value) -> list[Value]:
        return [value]

    def together(self, work: Callable[[], Value]) -> Value:
        return work()


def folder_shelf(storage: Storage) -> LocalCheckpoints:
    alone: Any = Alone()
    return LocalCheckpoints(storage, alone)
