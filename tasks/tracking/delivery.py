"""Delivers a run to MLflow and other sinks while it trains, in a thread: training never waits for a tracking server."""

import threading
from collections.abc import Callable, Sequence

from nbrl.infra.errors import InfraError, shortened
from nbrl.infra.home import Home
from nbrl.infra.storage import Storage
from nbrl.infra.tracking import Tracking
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.ending import Ending
from nbrl.tasks.runs.run import Run
from nbrl.tasks.tracking.mlflow_sync import MlflowSync, deliver
from nbrl.tasks.tracking.sinks import SinkDelivery, sinks_of

RETRY_S = 30.0  # between deliveries while MLflow does not answer
END_S = 60.0  # for what is left at the end of a run


def complete(config: RunConfig, storage: Storage, run: Run, say: Callable[[str], None]) -> None:
    """Deliver a finished run of which a part may be missing, because its process was killed at the end."""
    tracking = Tracking(config.tracking, Home(config.home))
    sync = MlflowSync(config, storage, run, tracking)
    try:
        if not sync.is_complete():
            deliver(sync, tracking)
    except InfraError as error:
        track = f"nbrl track {run.name}{storage.settings.option}"
        say(f"nbrl: warning: not all of run {run.name!r} is in MLflow; `{track}` delivers the rest: {error}")
    fill(sinks_of(config, storage, run), lambda sink, what: say(f"nbrl: warning: {sink} {what}"))


def fill(sinks: Sequence[SinkDelivery], warn: Callable[[str, str], None], last: bool = True) -> None:
    """Deliver what the storage has to all sinks, which end if it is the `last` of it. `warn` gets each that fails, and why."""
    for each in sinks:
        try:
            each.catch_up()
            if last:
                each.sink.end()
        except Exception as error:
            warn(each.sink.name, f"cannot be written: {shortened(error)}")


class Delivery:
    """A thread over MLflow and other sinks. A delivery that fails is reported once for each, and tried again."""

    def __init__(
        self,
        run: str,
        sync: MlflowSync,
        tracking: Tracking,
        say: Callable[[str], None],
        sinks: Sequence[SinkDelivery] = (),
        option: str = "",
    ) -> None:
        """`option` is that with which commands find the run's storage."""
        self._option = option
        self._run, self._sync, self._tracking, self._say, self._sinks = run, sync, tracking, say, sinks
        self._wake, self._warned = threading.Event(), set[str]()
        self._end: Ending | None = None
        self._behind = False  # whether the last delivery to MLflow failed
        self._begins = True  # whether MLflow gets the run if it has not got it
        self._thread = threading.Thread(target=self._work, name="delivery", daemon=True)

    def start(self) -> None:
        self._wake.set()
        self._thread.start()

    def wake(self) -> None:
        """Deliver what the storage has by now."""
        self._wake.set()

    def finish(self, ending: Ending) -> None:
        """Deliver what is left, end MLflow's run with this status and reason, and say what could not be delivered.

        A delivery that was not started ends a run that MLflow has from an earlier start, and begins none.
        """
        self._end = ending
        if self._thread.ident is None:
            self._begins = False
            self._thread.start()
        self._wake.set()
        self._thread.join(END_S)
        if self._thread.is_alive() or self._behind:
            count = self._sync.behind()
            rest = "summary" if ending.status == "FINISHED" else "end"
            what = f"{count} iterations of run {self._run!r} are" if count else f"the {rest} of run {self._run!r} is"
            self._say(
                f"nbrl: {what} not delivered to MLflow at {self._tracking.uri}; nothing is lost: "
                f"`nbrl track {self._run}{self._option}` delivers what is missing"
            )

    def _work(self) -> None:
        while True:
            self._wake.wait(RETRY_S if self._behind else None)
            self._wake.clear()
            ending = self._end  # read before the delivery, so that nothing written before it is missed
            try:
                if not self._begins and not self._sync.is_begun():
                    return
                fill(self._sinks, self._warn, last=ending is not None)
                self._sync.catch_up()
                if ending is None:
                    self._tracking.machine.watch()
                else:
                    self._sync.end(ending)
                self._behind = False
            except Exception as error:
                self._behind = True
                self._warn(f"MLflow at {self._tracking.uri}", f"takes nothing, it is tried again: {shortened(error)}")
            if ending is not None:
                return

    def _warn(self, sink: str, what: str) -> None:
        if sink not in self._warned:
            self._warned.add(sink)
            self._say(f"nbrl: warning: {sink} {what}")
