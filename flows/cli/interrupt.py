"""Ctrl-C while modules are imported: an exception may get lost in an import, and there is nothing to end yet but this process."""

import os
import signal


def _leave(*_: object) -> None:
    os._exit(130)


def hold() -> None:
    """From now on Ctrl-C ends this process at once. Where it is ignored, as in a shell's background job, it stays so."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)


def release() -> None:
    """From now on Ctrl-C is a KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class Importing:
    """A context in which modules are imported and nothing else is done."""

    def __enter__(self) -> None:
        hold()

    def __exit__(self, *_: object) -> None:
        release()
