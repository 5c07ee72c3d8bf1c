"""Keeps with a run what its process prints, and the ends of the logs of the services that it started."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from nbrl.flows.display.progress import ProgressDisplay
from nbrl.infra.errors import StorageError
from nbrl.infra.home import Home
from nbrl.infra.storage import Storage
from nbrl.tasks.runs.logs import RunLog
from nbrl.tasks.runs.writer import Writer

EVERY_S = 5.0
SERVICES = ("engine-*.log", "ray*.log")


@asynccontextmanager
async def lines_kept(storage: Storage, writer: Writer, progress: ProgressDisplay, home: Home) -> AsyncIterator[None]:
    """Bring each line of `progress` to the storage within seconds, and at the end the logs of engines and Ray.

    A storage that fails loses lines and stops nothing: the work itself meets the fault.
    """
    log, began = RunLog(storage, writer.run.layout, writer.epoch), time.time()
    log.write(f"{writer.run.layout.title} begins as {writer.epoch}; the logs of its services are in {home.logs}")
    progress.add_listener(log.write)

    async def flushing() -> None:
        while True:
            with suppress(StorageError):
                await asyncio.to_thread(log.flush)
            await asyncio.sleep(EVERY_S)

    task = asyncio.create_task(flushing())
    try:
        yield
    except BaseException as error:
        log.write(f"ended: {type(error).__name__}: {error}".rstrip(": "))
        raise
    else:
        log.write("ended: all done")
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        with suppress(StorageError, OSError):
            log.flush()
            for names in SERVICES:
                log.keep_tails(home.logs, names, began)
