"""Writes checkpoints: their parts, and states before the order is answered or beside what the ranks do next."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import torch
import torch.distributed as dist

from nbrl.tasks.learner.checkpoint.sharded_state import Writing
from nbrl.tasks.learner.checkpoint.store import CheckpointStore
from nbrl.tasks.learner.orders import UpdateOrder, UpdateResult
from nbrl.tasks.learner.process.ranks import Ranks, Timer, give_back
from nbrl.tasks.learner.step.optimizer import OptimizedModel

Made = TypeVar("Made")
HOST = torch.device("cpu")


class CheckpointWriter:
    """All ranks call the same methods in the same sequence. `names` are those of the models that have states."""

    def __init__(self, store: CheckpointStore, ranks: Ranks, timer: Timer, names: list[str]) -> None:
        self._store, self._ranks, self._timer = store, ranks, timer
        # States are written beside other work, each over its own group, because collectives of one group must not interleave.
        self._groups = {name: dist.new_group(backend="gloo") for name in names}
        self._thread = ThreadPoolExecutor(1, "states")
        self._later: list[Writing] = []  # what `finish` lets be added
        self._adding: Future[None] | None = None

    def write(self, order: UpdateOrder, models: Mapping[str, OptimizedModel], write_parts: Callable[[Path], Made]) -> Made:
        """Write the checkpoint except its result, and return what `write_parts`, which gets its folder, returned.

        An error leaves nothing of it. Raises UpdateError or StorageError, also of the states of the last checkpoint.
        """
        store, out = self._store, order.checkpoint_out
        with self._timer.phase("checkpoint"):
            self.settle()
        with self._timer.phase("stage"):
            folder = store.begin(out)
            place = store.begin_states(out) if order.state == "later" else folder
            chosen = models.items() if order.state != "none" else ()
            states = [model.save(place / name, self._groups[name]) for name, model in chosen]
        try:
            made = write_parts(folder)
            if order.state == "awaited":
                with self._timer.phase("checkpoint"):
                    for state in states:
                        state.wait()
                for state in states:
                    self._ranks.together(state.check)
        except BaseException:
            self._abandon(out, states)
            raise
        self._later = states if order.state == "later" else []
        return made

    def finish(self, out: str, result: UpdateResult) -> None:
        """Make the checkpoint of what was written, with its result, and begin to add the states that come later.

        Raises UpdateError or StorageError, and leaves nothing of it.
        """
        states, self._later = self._later, []
        try:
            self._store.finish(out, result)
        except BaseException:
            self._abandon(out, states)
            raise
        if states:
            self._adding = self._thread.submit(self._add, out, states)

    def settle(self) -> None:
        """Wait until the states of the last checkpoint are there. Raises UpdateError or StorageError if they could not be stored;
        the checkpoint then stays without them.
        """
        adding, self._adding = self._adding, None
        if adding is not None:
            self._ranks.together(adding.result)

    def _abandon(self, out: str, states: list[Writing]) -> None:
        """Delete what was written: the disk may be full."""
        for state in states:  # none may outlive its order: the next one may clear the same folder
            state.wait()
        self._store.abandon(out)
        self._store.abandon_states(out)

    def _add(self, out: str, states: list[Writing]) -> None:
        try:
            for state in states:
                state.check()
            self._store.add_states(out)
        except BaseException:
            self._store.abandon_states(out)
            raise
        finally:
            states.clear()
            give_back(HOST)  # the copies from which they were written
