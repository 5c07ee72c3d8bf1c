"""Delivers a run to MLflow and TensorBoard while it trains, in a thread: training never waits for a tracking server."""

import threading
from collections.abc import Callable

from nbrl.infra.errors import InfraError, shortened
from nbrl.infra.home import Home
from nbrl.infra.storage import Storage
from nbrl.infra.tracking import Tracking
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.ending import Ending
from nbrl.tasks.runs.run import Run
from nbrl.tasks.tracking.curves import Curves, curves_of
from nbrl.tasks.tracking.mlflow_sync import MlflowSync, deliver

RETRY_S = 30.0  # between deliveries while MLflow does not answer
END_S = 60.0  # for what is left at the end of a run


def complete(config: RunConfig, storage: Storage, run: Run, say: Callable[[str], None]) -> None:
    """Deliver a finished run of which a part may be missing, because its process was killed at the end."""
    tracking = Tracking(config.tracking, Home(config.home))
    books = MlflowSync(config, storage, run, tracking)
    try:
        if not books.is_complete():
            deliver(books, tracking)
    except InfraError as error:
        say(f"nbrl: warning: not all of run {run.name!r} is in MLflow; `nbrl track {run.name}` delivers the rest: {error}")
    if (curves := curves_of(config.tracking, storage, run)) is not None:
        draw(curves, say)


def draw(curves: Curves, say: Callable[[str], None]) -> None:
    """Write the event files of a run that nobody trains. What prevents it is said."""
    try:
        curves.catch_up()
        curves.end()
    except Exception as error:
        say(f"nbrl: warning: TensorBoard's files in {curves.place} are not complete: {shortened(error)}")


class Delivery:
    """A thread over `Books` and `Curves`. A delivery that fails is said once and tried again."""

    def __init__(
        self, run: str, books: MlflowSync, tracking: Tracking, say: Callable[[str], None], curves: Curves | None = None
    ) -> None:
        self._run, self._books, self._tracking, self._say, self._curves = run, books, tracking, say, curves
        self._wake, self._warned = threading.Event(), set[str]()
        self._end: Ending | None = None
        self._behind = False  # whether the last delivery to MLflow failed
        self._thread = threading.Thread(target=self._work, name="delivery", daemon=True)

    def start(self) -> None:
        self._wake.set()
        self._thread.start()

    def wake(self) -> None:
        """Deliver what the storage has by now."""
        self._wake.set()

    def finish(self, ending: Ending) -> None:
        """Deliver what is left, end MLflow's run with this status and reason, and say what could not be delivered."""
        self._end = ending
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
            self._draw(ending is not None)
            try:
                self._books.catch_up()
                if ending is None:
                    self._tracking.machine.watch()
                else:
                    self._books.end(ending)
                self._behind = False
            except Exception as error:
                self._behind = True
                self._warn(f"MLflow at {self._tracking.uri} takes nothing, it is tried again: {shortened(error)}", "MLflow")
            if ending is not None:
                return

    def _draw(self, last: bool) -> None:
        if self._curves is None:
            return
        try:
            self._curves.catch_up()
            if last:
                self._curves.end()
        except Exception as error:
            self._warn(f"TensorBoard's files in {self._curves.place} cannot be written: {shortened(error)}", "TensorBoard")

    def _warn(self, what: str, of: str) -> None:
        if of not in self._warned:
            self._warned.add(of)
            self._say(f"nbrl: warning: {what}")
