"""Delivers a run to MLflow while it trains, in a thread: training never waits for a tracking server."""

import threading
from collections.abc import Callable
from typing import Literal

from nbrl.infra.errors import InfraError
from nbrl.infra.home import Home
from nbrl.infra.storage import Storage
from nbrl.infra.tracking import Tracking
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.run import Run
from nbrl.tasks.tracking.books import Books, deliver

RETRY_S = 30.0  # between deliveries while MLflow does not answer
END_S = 60.0  # for what is left at the end of a run
WORDS = 200  # of MLflow's own message


def complete(config: RunConfig, storage: Storage, run: Run, say: Callable[[str], None]) -> None:
    """Deliver a finished run of which a part may be missing, because its process was killed at the end."""
    tracking = Tracking(config.tracking, Home(config.home))
    books = Books(config, storage, run, tracking)
    try:
        if not books.is_complete():
            deliver(books, tracking)
    except InfraError as error:
        say(f"nbrl: warning: not all of run {run.name!r} is in MLflow; `nbrl track {run.name}` delivers the rest: {error}")


class Delivery:
    """A thread over `Books`. A delivery that fails is said once and tried again."""

    def __init__(self, run: str, books: Books, tracking: Tracking, say: Callable[[str], None]) -> None:
        self._run, self._books, self._tracking, self._say = run, books, tracking, say
        self._wake, self._warned = threading.Event(), False
        self._end: Literal["FINISHED", "FAILED"] | None = None
        self._behind = False  # whether the last delivery failed
        self._thread = threading.Thread(target=self._work, name="delivery", daemon=True)

    def start(self) -> None:
        self._wake.set()
        self._thread.start()

    def wake(self) -> None:
        """Deliver what the storage has by now."""
        self._wake.set()

    def finish(self, status: Literal["FINISHED", "FAILED"]) -> None:
        """Deliver what is left, end MLflow's run with this status, and say what could not be delivered."""
        self._end = status
        self._wake.set()
        self._thread.join(END_S)
        if self._thread.is_alive() or self._behind:
            count = self._books.behind()
            what = f"{count} iterations of run {self._run!r} are" if count else f"the summary of run {self._run!r} is"
            self._say(
                f"nbrl: {what} not delivered to MLflow at {self._tracking.uri}; nothing is lost: `nbrl track {self._run}` "
                "delivers what is missing"
            )

    def _work(self) -> None:
        while True:
            self._wake.wait(RETRY_S if self._behind else None)
            self._wake.clear()
            ending = self._end  # read before the delivery, so that nothing written before it is missed
            try:
                self._books.catch_up()
                if ending is not None:
                    self._books.end(ending)
                self._behind = False
            except Exception as error:
                self._behind = True
                self._warn(error)
            if ending is not None:
                return

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            reason = " ".join(str(error).split())[:WORDS]
            self._say(f"nbrl: warning: MLflow at {self._tracking.uri} takes nothing, it is tried again: {reason}")
