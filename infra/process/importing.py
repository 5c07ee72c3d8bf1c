"""Imports of large libraries without the garbage collector."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collection() -> Iterator[None]:
    """Import inside. Collections, each of which looks at all that was imported so far, take up to a fifth of such imports' time.

    What was imported is left out of later collections too. Not for two threads at once.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
