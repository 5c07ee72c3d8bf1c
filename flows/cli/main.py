"""Entry point of `nbrl`. The commands are in flows/cli/commands.py."""

import io
import sys

from nbrl.flows.cli import interrupt
from nbrl.flows.cli.ending import QuickEnd
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

    app(prog_name="nbrl")


def _take_any_text(stream: object) -> None:
    """Let a stream write `?` for characters that its encoding lacks, instead of raising. A closed stream is None.

    Bytes of file names that are not UTF-8 are written unchanged, if the stream can.
    """
    if isinstance(stream, io.TextIOWrapper) and (stream.errors == "strict" or stream.encoding.lower() != "utf-8"):
        stream.reconfigure(errors="replace")


if __name__ == "__main__":
    process()
