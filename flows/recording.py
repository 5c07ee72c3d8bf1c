"""Serves a run's policy to agents that run elsewhere, and records their sessions, until Ctrl-C."""

import asyncio
import signal
from contextlib import ExitStack
from pathlib import Path

from nbrl.flows.display.terminal import err, out
from nbrl.infra.engine.server import EngineServer, launch, wait
from nbrl.infra.engine.settings import EngineSettings
from nbrl.infra.errors import EngineError
from nbrl.infra.process.identity import advertised
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.layout.runs import NAME
from nbrl.tasks.recorded.server import LiveDoor
from nbrl.tasks.recorded.serving import RecordedRun, recording

LOOK_S = 1.0


def record_sessions(
    storage: Storage,
    name: str,
    home: Path,
    settings: EngineSettings,
    logs: Path,
    door: LiveDoor,
    patience_s: float,
) -> None:
    """Start an engine with the newest policy of a run and answer sessions until Ctrl-C or SIGTERM.

    Raises ConfigError for a run that learns from no sessions, EngineError if the engine ends.
    """
    if not NAME.fullmatch(name):
        raise ConfigError(f"--record needs the name of a run, whose sessions are learned from, and not {name!r}")
    of_run = RecordedRun(storage, name, home)
    with ExitStack() as stack:
        folder = of_run.enter(stack)
        with err.status(f"starting {name}"):
            server = launch(settings, folder, logs, version=str(of_run.served.updates))
            wait([server])
        try:
            asyncio.run(_until_ended(of_run, server, folder, door, patience_s))
        finally:
            server.stop()


async def _until_ended(of_run: RecordedRun, server: EngineServer, folder: Path, door: LiveDoor, patience_s: float) -> None:
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, ended.set)

    def say(text: str) -> None:
        out.print(text, highlight=False, soft_wrap=True)

    async with recording(of_run, server, folder, door, patience_s, say) as following:
        address, weights = f"http://{advertised(door.host)}:{door.port}", of_run.served.updates
        say(f"sessions of run {of_run.run.name} are recorded at {address}/sessions/ID/v1 with weights {weights}; {door.hint}")
        say(f'end one by POST {address}/sessions/ID/reward with {{"reward": 0.0 to 1.0}}; Ctrl-C ends the server')
        while not ended.is_set():
            if following.done():
                following.result()
            if not server.alive():
                raise EngineError(f"the engine ended: {server.ending()} (log: {server.log})")
            try:
                async with asyncio.timeout(LOOK_S):
                    await ended.wait()
            except TimeoutError:
                pass
