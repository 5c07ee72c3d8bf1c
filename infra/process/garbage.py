"""Limits Python's garbage collection in processes with large libraries, all of whose objects a full collection looks at."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

NEW_OBJECTS = 50_000  # between two collections; Python's own 700 are few for a process that makes thousands of them at once


@contextmanager
def without_collection() -> Iterator[None]:
    """Import inside. Collections would take up to a fifth of the time that imports of large libraries take.

    What was imported is left out of later collections too, its garbage with it. Not for two threads at once.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def collect_rarely() -> None:
    """Leave present objects out of collections from now on, and collect once for every `NEW_OBJECTS` that stay."""
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS)
