"""What hostile bytes may cost the event loop: a share of its time for each connection, measured and paid for afterwards."""

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager

# Of the event loop's time: the share of one connection, and the seconds that it may take at once.
_SHARE, _BURST_S = 0.1, 0.2


class Share:
    """The account of one connection. Messages differ a thousandfold in what they cost for each byte, so time is counted."""

    def __init__(self) -> None:
        # When what was spent is paid for at the rate of the share.
        self._due = 0.0

    @contextmanager
    def spend(self) -> Iterator[None]:
        """Work on the connection's account; it must not wait for anything, and should free what it made."""
        began = time.thread_time()
        try:
            with _uncollected():
                yield
        finally:
            now = time.monotonic()
            self._due = max(self._due, now - _BURST_S / _SHARE) + (time.thread_time() - began) / _SHARE

    def wait(self) -> float:
        """The seconds until the connection may spend more."""
        return max(0.0, self._due - time.monotonic())


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the collector of cycles, which a message of a million empty lists would set to work hundreds of times in vain.

    Objects freed inside no longer count towards the collector's next round, which looks at all objects of the process at worst.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
