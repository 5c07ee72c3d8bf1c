"""Runs ALONE, as a program: compares answers by packages that execute what an answer says, some of them as Python.

Usage: python -I scorer.py RULE SECONDS

Each line of standard input is a comparison, `{"answer", "answers", "reference"}` as JSON. The first line of standard output is
`ready`, and then there is one for each comparison: a number from 0 to 1. Every comparison runs in a process of its own, forked
once the packages are imported, with little memory and at most SECONDS seconds; one that fails or takes longer is worth 0. It
imports nothing of this package.
"""

import contextlib
import ctypes
import inspect
import json
import math
import os
import re
import resource
import select
import signal
import struct
import sys
import time
import unicodedata
from collections.abc import Callable
from functools import cache
from typing import Any

os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # threads count as processes
MEMORY = 2 << 30
PR_SET_DUMPABLE = 4
FORK_S = 5.0
FEW = 4  # processes of a sandbox in which nothing else runs
NUMBER = struct.Struct("d")
EXECUTES = re.compile(r"\b(eval|exec|parse_expr|sympify)\(")
WORD = re.compile(r"(?<!\\)\b[^\W\d_]{2,}")  # of a language; commands of LaTeX begin with a backslash
FUNCTIONS = {"sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "exp", "log", "ln", "sqrt", "abs", "Abs"}
CALLED = re.compile(r"([^\W\d]\w*|[\w)\]}'\"])\s*\(")


def harmless(answer: str) -> bool:
    """Whether Python that evaluates the text calls nothing but functions of mathematics, so that it can only take time."""
    text = unicodedata.normalize("NFKC", answer)  # as Python reads names
    if "__" in text or "\\" in text or re.search(r"\.\s*[^\W\d]", text):
        return False
    return all(called in FUNCTIONS for called in CALLED.findall(text))


@cache
def task(name: str, settings: str) -> tuple[Any, bool]:
    """A task of reasoning-gym, and whether its scorer executes answers."""
    from reasoning_gym.factory import create_dataset

    data = create_dataset(name, seed=0, size=1, **json.loads(settings))
    return data, bool(EXECUTES.search(inspect.getsource(inspect.getmodule(type(data)) or type(data))))


def reasoning_gym(comparison: dict[str, Any]) -> float:
    """The score of the task's own scorer; 0 for an answer that its scorer must not execute."""
    reference = json.loads(comparison["reference"])
    data, executes = task(reference["task"], json.dumps(reference["settings"]))
    if executes and not harmless(comparison["answer"]):
        return 0.0
    return float(data.score_answer(comparison["answer"], reference["entry"]))


def maths(comparison: dict[str, Any]) -> float:
    """1 if the answer is equal by value to one of the answers, written in LaTeX or as plain numbers and expressions."""
    from math_verify import parse, verify

    def read(text: str) -> list[Any]:
        # An expression without its dollars as a whole, or the one within a sentence.
        bare = [] if "$" in text or "\\boxed" in text else [f"${text}$"]
        tries = [text, *bare] if WORD.search(text) else [*bare, text]
        return next((found for each in tries if (found := parse(each, parsing_timeout=None))), [])

    given = read(comparison["answer"])
    return float(any(verify(read(each), given, timeout_seconds=None) for each in comparison["answers"]))


RULES: dict[str, Callable[[dict[str, Any]], float]] = {"reasoning_gym": reasoning_gym, "math": maths}


def prepare(rule: str) -> None:
    """Import what every comparison needs, once."""
    match rule:
        case "math":
            import math_verify  # noqa: F401
        case "reasoning_gym":
            import reasoning_gym.factory  # noqa: F401


def compare(rule: str, line: bytes, seconds: float) -> float:
    """The result of one comparison, made in a child."""
    if rule == "reasoning_gym":
        reference = json.loads(json.loads(line)["reference"])
        task(reference["task"], json.dumps(reference["settings"]))  # before the fork, so that it is made once
    reading, writing = os.pipe()
    pid = fork()
    if pid == 0:
        try:
            os.close(reading)
            confine(seconds)
            os.write(writing, NUMBER.pack(RULES[rule](json.loads(line))))
        finally:
            os._exit(0)
    os.close(writing)
    answered, _, _ = select.select([reading], [], [], seconds)
    data = os.read(reading, NUMBER.size) if answered else b""
    os.close(reading)
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)  # whatever the answer started: this namespace has nothing else
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)
    result = NUMBER.unpack(data)[0] if len(data) == NUMBER.size else 0.0
    return min(1.0, max(0.0, result)) if math.isfinite(result) else 0.0


def fork() -> int:
    """As os.fork, once the processes of the comparison before have been reaped: there is room for few."""
    end = time.monotonic() + FORK_S
    while True:
        try:
            return os.fork()
        except BlockingIOError:
            if time.monotonic() > end:
                raise
            time.sleep(0.01)


def confine(seconds: float) -> None:
    """The child's own limits. What it prints is lost: standard output is the parent's."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    cpu = math.ceil(seconds) + 1
    for what, limit in {resource.RLIMIT_AS: MEMORY, resource.RLIMIT_CPU: cpu, resource.RLIMIT_FSIZE: 0}.items():
        resource.setrlimit(what, (limit, limit))


def main(rule: str, seconds: float) -> None:
    if len([name for name in os.listdir("/proc") if name.isdecimal()]) > FEW:
        sys.exit("it runs in a sandbox alone, where it may end every other process")
    # No child can then reach into the memory and the files of this process, or of the one that makes its comparison.
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    prepare(rule)
    print("ready", flush=True)
    for line in sys.stdin.buffer:
        print(json.dumps(compare(rule, line, seconds)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
