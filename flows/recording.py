"""Serves a run's policy to agents that run elsewhere, and records their sessions, until Ctrl-C."""

import asyncio
import signal
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from nbrl.flows.display.terminal import err, out
from nbrl.infra.engine.command import Door
from nbrl.infra.engine.server import EngineServer, launch, wait
from nbrl.infra.engine.settings import EngineSettings
from nbrl.infra.errors import EngineError, StorageError
from nbrl.infra.process.child import port_in_use
from nbrl.infra.process.identity import advertised
from nbrl.infra.process.shared import Budget
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.layout.runs import NAME
from nbrl.tasks.recorded.live import Keep
from nbrl.tasks.recorded.server import LiveDoor
from nbrl.tasks.recorded.serving import RecordedRun, recording

LOOK_S = 1.0
RESTARTS, WINDOW_S = 5, 600.0  # of the engine


def record_sessions(
    storage: Storage,
    name: str,
    home: Path,
    settings: EngineSettings,
    logs: Path,
    door: LiveDoor,
    patience_s: float,
    policy: str | None = None,
    keep: Keep | None = None,
) -> None:
    """Start an engine with the newest policy of a run and answer sessions until Ctrl-C or SIGTERM. With `keep`, questions are
    kept whose sessions say what answers them.

    Raises ConfigError for a run that learns from no sessions where no questions are kept, EngineError if the engine ends.
    """
    if not NAME.fullmatch(name):
        raise ConfigError(f"--record needs the name of a run, whose sessions are learned from, and not {name!r}")
    of_run = RecordedRun(storage, name, home, policy, None if keep is None else partial(_kept, keep, set[str]()))
    if port_in_use(door.port, door.host):
        raise EngineError(f"{door.host}:{door.port} is taken; choose another --port")
    with ExitStack() as stack:
        folder = of_run.enter(stack, of_run.served)
        with err.status(f"starting {name}"):
            server = launch(settings, folder, logs, version=str(of_run.served.updates), door=Door(stops=True))
            wait([server])
        running = [server]
        try:
            asyncio.run(_until_ended(of_run, running, folder, door, patience_s))
        finally:
            running[0].stop()


def _kept(keep: Keep, faults: set[str], question: str, right: list[str]) -> None:
    """Keep a question; a fault is said, once, for agents only see that they are to try again. Raises StorageError."""
    try:
        keep(question, right)
    except StorageError as error:
        if str(error) not in faults:
            out.print(str(error), highlight=False, markup=False, soft_wrap=True)
        faults.add(str(error))
        raise


async def _until_ended(of_run: RecordedRun, running: list[EngineServer], folder: Path, door: LiveDoor, patience_s: float) -> None:
    """Answer sessions; `running` has the engine as it was started last."""
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)

    def say(text: str) -> None:
        out.print(text, highlight=False, soft_wrap=True)

    restarts = Budget(RESTARTS, WINDOW_S)
    async with recording(of_run, running[0], folder, door, patience_s, say) as following:
        address, weights = f"http://{advertised(door.host)}:{door.port}", of_run.served.updates
        what = "recorded" if of_run.environment else "answered, and the questions of rewarded ones kept,"
        say(f"sessions of run {of_run.run.name} are {what} at {address}/sessions/ID/v1 with weights {weights}; {door.hint}")
        say(f'end one by POST {address}/sessions/ID/reward with {{"reward": 0.0 to 1.0}}; Ctrl-C ends the server')
        while not ended.is_set():
            if following.done():
                following.result()
            if not running[0].alive():
                running[0] = await asyncio.to_thread(_again, of_run, running[0], restarts, say)
            try:
                async with asyncio.timeout(LOOK_S):
                    await ended.wait()
            except TimeoutError:
                pass


def _again(of_run: RecordedRun, server: EngineServer, restarts: Budget, say: Callable[[str], None]) -> EngineServer:
    """Start the engine again at its place, so that open sessions go on. Raises EngineError if it ends too often."""
    ending = f"the engine ended: {server.ending()} (log: {server.log})"
    if not restarts.spend():
        raise EngineError(f"{ending}, more often than {restarts}")
    say(f"{ending}; it is started again, and requests wait for it")
    with ExitStack() as stack:
        server = server.again(of_run.enter(stack, of_run.served), str(of_run.served.updates))
        wait([server])
    return server
