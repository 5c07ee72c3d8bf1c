"""Chat templates rendered in a process of their own (render.py), and tokenizers whose errors are one kind of error: both come
from files of others.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nbrl.agent.errors import TokenizerError

PROGRAM = (sys.executable, "-I", str(Path(__file__).with_name("render.py")))
_lock = threading.RLock()
_users = 0
_process: "subprocess.Popen[bytes] | None" = None
_owner = 0  # the process that started it: a fork of this process starts one of its own
PANIC = "PanicException"  # of its Rust code: no Exception, and of a module that cannot be imported
SHOWN = 200


@contextmanager
def rendering() -> Iterator[None]:
    """Keep the process, which `render` starts, until the end of the body. Bodies may be nested, and share it."""
    global _users
    with _lock:
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if not _users:
                _end()


def render(source: str, day: str, variables: Mapping[str, Any]) -> str:
    """Return what a template makes of its variables on a day, in ISO format. Raises TokenizerError with what it says instead."""
    with rendering(), _lock:
        answer = _asked(json.dumps([source, day, variables]).encode() + b"\n")
        if not answer:
            _end()
            raise TokenizerError("it takes too long, or too much memory")
    reply = json.loads(answer)
    if "refused" in reply:
        raise TokenizerError(reply["refused"])
    return str(reply["text"])


def _asked(request: bytes) -> bytes:
    """Return the line that answers; empty if the process ended."""
    global _process, _owner
    if _process is None or _owner != os.getpid():
        _process = subprocess.Popen(PROGRAM, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={}, cwd="/")
        _owner = os.getpid()
    if _process.stdin is None or _process.stdout is None:
        raise RuntimeError("the program was started without pipes")
    try:
        _process.stdin.write(request)
        _process.stdin.flush()
    except BrokenPipeError:
        return b""
    return _process.stdout.readline()


def _end() -> None:
    global _process
    if _process is not None and _owner == os.getpid():
        _process.kill()
        _process.communicate()
    _process = None


@contextmanager
def guarded(file: Path) -> Iterator[None]:
    """Raises TokenizerError for any failure of the body, in which the tokenizer of `file` is loaded or used."""
    try:
        yield
    except TokenizerError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != PANIC:
            raise
        reason = " ".join(str(error).split())[:SHOWN]
        raise TokenizerError(f"{file} is not a tokenizer that works: {reason}; fetch or save the model again") from error
