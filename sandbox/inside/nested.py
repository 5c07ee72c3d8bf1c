"""`asyncio.run` in a cell, as in a program. Cells run inside the kernel's loop, where it would refuse."""

import asyncio
from collections.abc import Callable
from functools import wraps
from typing import Any


def allow_nested_runs(loop: Any) -> None:
    """Let `asyncio.run`, a Runner, another loop, and the kernel's own `loop.run_until_complete` run a coroutine meanwhile.

    Each runs in a loop of its own; what runs in the kernel's loop waits until it is done.
    """

    def apart(stock: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, run as if no loop ran where the kernel's does."""

        @wraps(stock)
        def run(*given: Any, **options: Any) -> Any:
            if asyncio._get_running_loop() is not loop or given[:1] == (loop,):
                return stock(*given, **options)
            asyncio._set_running_loop(None)
            try:
                return stock(*given, **options)
            finally:
                asyncio._set_running_loop(loop)
                asyncio.set_event_loop(loop)

        return run

    def run_until_complete(future: Any) -> Any:
        nested = asyncio.iscoroutine(future) and asyncio._get_running_loop() is loop
        return asyncio.run(future) if nested else stock_until_complete(future)

    stock_until_complete = loop.run_until_complete
    loop.run_until_complete = run_until_complete
    asyncio.run = apart(asyncio.run)
    for kind, names in ((asyncio.Runner, ("run", "close")), (asyncio.BaseEventLoop, ("run_until_complete", "run_forever"))):
        for name in names:
            setattr(kind, name, apart(getattr(kind, name)))
