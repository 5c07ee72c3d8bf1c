"""Answers requests, a line of JSON each, many at once; an answer has the number of its request.

An answer is `ok` with a value, `refused` with what the asking side did wrong, or `failed` with what went wrong here.
"""

import asyncio
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from .episodes import TasksetEpisodes
from .errors import TasksetRefusalError, TooLongError, in_words
from .slices import sliced, unbound
from .tasksets import TasksetSource

ANSWER_BYTES = 4 << 20
THREADS = 256


class TasksetService:
    """What can be asked: `open` first, then the others."""

    def __init__(self) -> None:
        self._source: TasksetSource | None = None
        self._episodes: TasksetEpisodes | None = None

    async def answer(self, request: dict[str, Any]) -> Any:
        match request["do"]:
            case "ping":
                return None
            case "open":
                unbound()  # imports
                self._source = TasksetSource(request["taskset"], request["settings"], request["folder"])
                self._episodes = TasksetEpisodes(self._source)
                return {"version": self._source.version}
        if self._source is None or self._episodes is None:
            raise TasksetRefusalError("nothing was opened")
        match request["do"]:
            case "tasks":
                unbound()  # data sets
                page = self._source.page(request["split"], request["count"])
                if page["first"] is not None:
                    await self._episodes.tried(request["split"], page.pop("first"))
                return page
            case "start":
                return await self._episodes.start(request["session"], request["split"], request["data"], request["seed"])
            case "call":
                return await self._episodes.call(request["session"], request["step"], request["tool"], request["arguments"])
            case "finish":
                return await self._episodes.finish(request["session"], request["steps"], request["answer"], request["status"])
            case "end":
                return await self._episodes.end(request["session"])
            case other:
                raise TasksetRefusalError(f"there is no request {other!r}")


async def _answered(service: TasksetService, line: bytes, out: int) -> None:
    request = json.loads(line)
    answer: dict[str, Any] = {"id": request["id"]}
    try:
        answer["ok"] = await service.answer(request)
    except TasksetRefusalError as error:
        answer["refused"] = str(error)
    except (Exception, TooLongError) as error:
        answer["failed"] = in_words(error)
    try:
        text = json.dumps(answer).encode()
        if len(text) > ANSWER_BYTES:
            raise ValueError(f"the answer is larger than {ANSWER_BYTES} bytes")
    except (TypeError, ValueError, RecursionError) as error:
        text = json.dumps({"id": request["id"], "refused": f"the answer cannot be given: {error}"}).encode()
    left = memoryview(text + b"\n")
    while left:
        left = left[os.write(out, left) :]


async def _serve(source: int, out: int) -> None:
    loop = asyncio.get_running_loop()
    loop.set_task_factory(sliced)
    loop.set_default_executor(ThreadPoolExecutor(THREADS))
    service, tasks = TasksetService(), set[asyncio.Task[None]]()

    def begin(line: bytes) -> None:
        task = loop.create_task(_answered(service, line, out))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def read() -> None:
        with os.fdopen(source, "rb") as lines:
            for line in lines:
                loop.call_soon_threadsafe(begin, line)
        os._exit(0)  # nothing asks any more

    threading.Thread(target=read, name="requests", daemon=True).start()
    await asyncio.Event().wait()


def main(source: int, out: int) -> None:
    """Answer until no request can come any more."""
    for number in (source, out):
        os.set_inheritable(number, False)  # what a taskset starts must not hold them open
    asyncio.run(_serve(source, out))
