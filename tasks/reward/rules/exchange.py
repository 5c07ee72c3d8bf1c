"""Runs an untrusted scorer, with limits on the output and time of each exchange."""

import os
import selectors
import subprocess
import time
from collections.abc import Sequence
from typing import NamedTuple

CHUNK = 1 << 16
ERRORS_BYTES = 1 << 20


class Said(NamedTuple):
    """Standard output and standard error; `late`: the time was over before it had ended."""

    output: bytes
    errors: bytes
    late: bool


def exchange(command: Sequence[str], given: bytes, limit_s: float, limit_bytes: int) -> Said:
    """Give a program its standard input and read what it says; it is killed once that is too much, or takes too long.

    It runs in `/` and without variables. At most `limit_bytes` of standard output are kept, and ERRORS_BYTES of standard error.
    """
    end, late = time.monotonic() + limit_s, False
    with (
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={}, cwd="/", bufsize=0
        ) as process,
        selectors.DefaultSelector() as streams,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        output, errors = process.stdout.fileno(), process.stderr.fileno()
        said, most = {output: bytearray(), errors: bytearray()}, {output: limit_bytes, errors: ERRORS_BYTES}
        os.set_blocking(process.stdin.fileno(), False)
        streams.register(process.stdin, selectors.EVENT_WRITE)
        streams.register(process.stdout, selectors.EVENT_READ)
        streams.register(process.stderr, selectors.EVENT_READ)
        left = memoryview(given)
        try:
            while streams.get_map() and all(len(said[stream]) <= most[stream] for stream in said):
                ready = streams.select(max(0.0, end - time.monotonic()))
                if late := not ready:
                    break
                for key, _ in ready:
                    if key.fileobj is process.stdin:
                        left = _written(key.fd, left)
                        if not left:
                            streams.unregister(process.stdin)
                            process.stdin.close()
                    elif more := os.read(key.fd, CHUNK):
                        said[key.fd] += more
                    else:
                        streams.unregister(key.fileobj)
        finally:
            process.kill()
    return Said(bytes(said[output][:limit_bytes]), bytes(said[errors][:ERRORS_BYTES]), late)


def _written(stream: int, data: memoryview) -> memoryview:
    """Return what of the data is left to write; nothing, once the other end is closed."""
    try:
        return data[os.write(stream, data[:CHUNK]) :]
    except BrokenPipeError:
        return data[:0]
