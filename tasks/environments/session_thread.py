"""One thread for the methods of one session: a blocking one stops no other session, and a connection stays in its thread."""

import asyncio
import inspect
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

Result = tuple[Any, BaseException | None]


class SessionThread:
    """Runs functions one after another in a thread of its own, which begins with the first of them."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[tuple[Callable[[], Any], Callable[[Result], None]] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    async def run(
        self, function: Callable[..., Any], /, *args: Any, late: Callable[[Any], None] | None = None, **kwargs: Any
    ) -> Any:
        """Return what a function returns: a plain one in the thread, a coroutine in the event loop. Re-raises its exception.

        `late` gets, in the thread, what a plain function returns after its caller was cancelled.
        """
        if inspect.iscoroutinefunction(function):
            try:
                return await function(*args, **kwargs)
            except SystemExit as leaving:  # it would end this process
                raise ended(leaving) from leaving
            except asyncio.CancelledError as cancelled:
                if (task := asyncio.current_task()) is not None and task.cancelling():
                    raise
                raise ended(cancelled) from cancelled  # its own code did: it would end what waits for it
        if self._thread is None:
            # Nothing waits for it at the end of the process, where a method may still block.
            self._thread = threading.Thread(target=self._serve, name="nbrl-session", daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Result] = loop.create_future()

        def settle(result: Result) -> None:
            if not answer.done():
                answer.set_result(result)

        def answered(result: Result) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(settle, result)

        returned = list[Any]()

        def work() -> Any:
            returned.append(function(*args, **kwargs))
            return returned[0]

        self._work.put((work, answered))
        try:
            value, error = await answer
        except asyncio.CancelledError:
            if late is not None:  # after the function, which may still run
                self._work.put((lambda: [late(value) for value in returned], lambda _: None))
            raise
        if error is not None:
            raise error
        return value

    def end(self) -> None:
        """Let the thread end after what it was given."""
        if self._thread is not None:
            self._work.put(None)

    def _serve(self) -> None:
        while (given := self._work.get()) is not None:
            function, answered = given
            try:
                result: Result = (function(), None)
            except BaseException as error:  # SystemExit would end the thread, and the call would never be answered
                result = (None, error if isinstance(error, Exception) else ended(error))
            answered(result)


def ended(error: BaseException) -> RuntimeError:
    """Return an exception for one that would end a process."""
    return RuntimeError(f"it raised {type(error).__name__}({error})")
