"""`asyncio.run` in a cell, as in a program. Cells run inside the kernel's loop, where it would refuse."""

import asyncio
from collections.abc import Callable
from typing import Any


def allow_nested_runs(loop: Any) -> None:
    """Let `asyncio.run` and the kernel's own `loop.run_until_complete` run a coroutine in a loop of its own meanwhile.

    What runs in the kernel's loop waits until it is done.
    """
    stock_run, stock_until_complete = asyncio.run, loop.run_until_complete

    def apart(work: Callable[[], Any]) -> Any:
        running = asyncio._get_running_loop()
        asyncio._set_running_loop(None)
        try:
            return work()
        finally:
            asyncio._set_running_loop(running)
            asyncio.set_event_loop(loop)

    def run(main: Any, **options: Any) -> Any:
        """Run a coroutine to its end and return its result."""
        if asyncio._get_running_loop() is not loop:
            return stock_run(main, **options)
        return apart(lambda: stock_run(main, **options))

    def run_until_complete(future: Any) -> Any:
        nested = asyncio.iscoroutine(future) and asyncio._get_running_loop() is loop
        return run(future) if nested else stock_until_complete(future)

    asyncio.run = run
    loop.run_until_complete = run_until_complete
