"""Entry point of `nbrl`. The commands are in flows/cli/commands.py."""

import io
import os
import sys
from typing import TextIO

from nbrl.flows.cli import interrupt
from nbrl.flows.cli.interrupt import QuickEnd
from nbrl.infra.process.garbage import collect_rarely


def process() -> None:
    """All that a process of the command line does, with its end."""
    quick = QuickEnd()
    collect_rarely()  # else a tenth of the time of a command's imports is spent on that
    with quick:
        main()


def main() -> None:
    """Run the command line, and raise SystemExit."""
    interrupt.hold()  # until a command begins its work
    for stream in (sys.stdout, sys.stderr):
        _take_any_text(stream)
    from nbrl.flows.cli.commands import app  # takes a tenth of a second

    try:
        app(prog_name="nbrl")
    except OSError as error:
        if not (full := [stream for stream in (sys.stdout, sys.stderr) if not _can_be_written(stream)]):
            raise
        for stream in full:  # what it still holds would be written again at the end
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        print(f"nbrl: the output cannot be written: {error.strerror}; send it to another place", file=sys.stderr)
        raise SystemExit(1) from error


def _can_be_written(stream: TextIO | None) -> bool:
    """Return whether it takes what it holds; nothing is ever written to a stream that was closed."""
    try:
        if stream is not None:
            stream.flush()
    except OSError:
        return False
    return True


def _take_any_text(stream: object) -> None:
    """Let a stream write `?` for characters that its encoding lacks, instead of raising. A closed stream is None.

    Bytes of file names that are not UTF-8 are written unchanged, if the stream can.
    """
    if isinstance(stream, io.TextIOWrapper) and (stream.errors == "strict" or stream.encoding.lower() != "utf-8"):
        stream.reconfigure(errors="replace")


if __name__ == "__main__":
    process()
