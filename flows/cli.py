"""`nbrl`: where the program begins. The commands are in flows/commands.py."""

import os
import signal
import sys
from typing import Any


def main() -> None:
    """Run what was typed."""
    for stream in (sys.stdout, sys.stderr):
        _take_any_text(stream)
    heard = signal.getsignal(signal.SIGINT) is signal.default_int_handler  # a shell's background job ignores Ctrl-C
    if heard:
        signal.signal(signal.SIGINT, _leave)
    from flows.commands import app  # takes a tenth of a second, in which Ctrl-C has nothing to end but this process

    if heard:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    app(prog_name="nbrl")


def _take_any_text(stream: Any) -> None:
    """Have a stream write `?` for what its encoding lacks, instead of an error. A closed stream is None."""
    if stream is not None and stream.errors == "strict":
        stream.reconfigure(errors="replace")


def _leave(*_: object) -> None:
    os._exit(130)


if __name__ == "__main__":
    main()
