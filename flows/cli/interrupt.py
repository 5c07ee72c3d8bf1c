"""Ctrl-C while modules are imported: an import may swallow the exception, so the process exits at once."""

import os
import signal


def _leave(*_: object) -> None:
    os._exit(130)


def hold() -> None:
    """Let Ctrl-C end this process at once. If SIGINT is ignored, as in a shell's background job, it stays ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)


def release() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


class Importing:
    """A context only for importing modules, in which Ctrl-C ends the process at once."""

    def __enter__(self) -> None:
        hold()

    def __exit__(self, *_: object) -> None:
        release()
