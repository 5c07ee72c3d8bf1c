"""Entry point of `nbrl`, and the end of its process. The commands are in flows/cli/commands.py."""

import atexit
import io
import os
import sys
from typing import TextIO

from nbrl.infra.process.garbage import collect_rarely

INTERRUPTED = 130


def process() -> None:
    """Run the command line, and end its process as soon as all exit handlers have run.

    By itself Python would take apart all objects then: more than a second of a core once Ray, Prefect and MLflow were imported.
    So finalizers do not run, and files other than the standard streams must be closed by what opened them.
    """
    status: list[int] = []
    atexit.register(_leave, status)  # before all others, so that it runs after them
    collect_rarely()  # else a tenth of the time of a command's imports is spent on that
    try:
        main()
    except SystemExit as end:
        if isinstance(end.code, int):
            status.append(end.code & 0xFF)  # what the system keeps of it
        raise


def _leave(status: list[int]) -> None:
    if not status:
        return
    try:
        for stream in filter(None, (sys.stdout, sys.stderr)):  # None where it was closed
            stream.flush()
    except (OSError, ValueError):
        return  # Python says what cannot be written, and ends with a status of its own
    except KeyboardInterrupt:
        os._exit(INTERRUPTED)  # what is left to be written has no reader
    os._exit(status[0])


def main() -> None:
    """Run the command line, and raise SystemExit."""
    try:
        for stream in (sys.stdout, sys.stderr):
            _take_any_text(stream)
        from nbrl.flows.cli.commands import app  # takes a tenth of a second

        app(prog_name="nbrl")
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
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
