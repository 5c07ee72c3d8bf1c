"""Runs ALONE, as a program: compares answers by packages that execute what an answer says, some of them as Python.

Usage: python -I scorer.py RULE CPU_SECONDS WALL_SECONDS

Each line of standard input is a comparison as JSON: `{"answer", "answers", "reference"}`, or by the rule `own` `{"reference",
"trajectory", "children"}`, whose last says whether children are scored too; a trajectory of null asks only that the class is
made. The first line of standard output is `ready`; there follows an object for each comparison: `{"score"}` from 0 to 1, by the
rule `own` the fields of a Score and what children are worth, or `{"fault"}`.

Every comparison runs in a process of its own, forked once the packages are imported, with little memory and at most CPU_SECONDS
of processor time, in whole seconds. One that waits uses none, and is ended after WALL_SECONDS. This program imports nothing of
this package but the vocabulary of environments of one's own and expressions.py.
"""

import ast
import base64
import contextlib
import ctypes
import importlib
import inspect
import json
import math
import os
import re
import resource
import select
import signal
import sys
import time
import unicodedata
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

os.environ |= {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # threads count as processes
MEMORY = 2 << 30
PR_SET_DUMPABLE = 4
FORK_S = 5.0
FAULT_CHARS = 300
FEW = 4  # processes of a sandbox in which nothing else runs
RESULT_BYTES = 1 << 16
WARM = (r"\frac{1}{2}", r"\boxed{x^2+\sqrt{3}}", "0.5", "3*sqrt(5)", "(1, 2)", r"\{1, 2\}", "x = 3", "1/2", r"50\%")
EXECUTES = re.compile(r"\b(eval|exec|parse_expr|sympify)\(")
FUNCTIONS = {"sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "exp", "log", "ln", "sqrt", "abs", "Abs"}
CONSTANTS = {"pi", "oo"}  # besides names of one letter
NAME = re.compile(r"[^\W\d]\w*")
CALLED = re.compile(r"([^\W\d]\w*|[\w)\]}])\s*\(")
# Private names, escapes, comments (a name may be called, or have an attribute, behind one), decorators, and attributes.
NEVER = re.compile(r"__|\\|#|@|\.\s*[^\W\d]")
BINDS = re.compile(r"[:=]")
COMPARED = {"codeio"}  # tasks that execute programs of their own, and compare answers


def harmless(answer: str) -> bool:
    """Return whether an evaluation of the text as an expression, also twice, can do nothing but take time.

    With parentheses, it calls nothing but functions of mathematics, by their own names. A string may be evaluated again, so
    it may only be a literal, and one that says what calls nothing.
    """
    text = unicodedata.normalize("NFKC", answer)  # as Python reads names
    if NEVER.search(text):
        return False
    if "'" in text or '"' in text:
        return "(" not in text and is_literal(text)
    if "(" not in text:
        return True
    known = all(len(name) == 1 or name in FUNCTIONS | CONSTANTS for name in NAME.findall(text))
    return text.isascii() and known and not BINDS.search(text) and all(name in FUNCTIONS for name in CALLED.findall(text))


def is_literal(text: str) -> bool:
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return False
    return True


@cache
def task(name: str, settings: str) -> tuple[Any, bool]:
    """Return a task of reasoning-gym, and whether its scorer executes answers."""
    from reasoning_gym.factory import create_dataset

    data = create_dataset(name, seed=0, size=1, **json.loads(settings))
    return data, name not in COMPARED and bool(EXECUTES.search(inspect.getsource(inspect.getmodule(type(data)) or type(data))))


def reasoning_gym(comparison: dict[str, Any]) -> dict[str, Any]:
    """Return the score of the task's own scorer; 0 for an answer that its scorer must not execute.

    Of a list of answers, one for each of the reference's `entries`, the scores; 0 for what the scorer cannot score.
    """
    reference, answer = json.loads(comparison["reference"]), comparison["answer"]
    data, executes = task(reference["task"], json.dumps(reference["settings"]))

    def score(text: str, entry: Any) -> float:
        return 0.0 if executes and not harmless(text) else bounded(data.score_answer(text, entry))

    if not isinstance(answer, list):
        return {"score": score(answer, reference["entry"])}
    scores = [0.0] * len(answer)
    for place, (text, entry) in enumerate(zip(answer, reference["entries"], strict=True)):
        with contextlib.suppress(Exception):
            scores[place] = score(text, entry)
    return {"scores": scores}


def maths(comparison: dict[str, Any]) -> dict[str, Any]:
    """Return a score of 1 if the answer is equal by value to one of the answers."""
    from nbrl.tasks.reward.rules.expressions import equal

    return {"score": float(equal(comparison["answer"], comparison["answers"]))}


def bounded(score: Any) -> float:
    """Return the score as a number from 0 to 1; 0 for what is none."""
    return min(1.0, max(0.0, float(score))) if math.isfinite(float(score)) else 0.0


@cache
def own_tasks(place: str, settings: str) -> Any:
    """Return an environment of one's own. Raises TypeError if there is something else at the place."""
    from nbrl.tasks.own import Tasks

    module, _, name = place.partition(":")
    kind = vars(importlib.import_module(module))[name]
    if not (isinstance(kind, type) and issubclass(kind, Tasks)):
        raise TypeError(f"{place} is no subclass of nbrl.tasks.own.Tasks or World")
    return kind(**json.loads(settings))


def own(comparison: dict[str, Any]) -> dict[str, Any]:
    """Return the score of a trajectory by the class, as the fields of its Score."""
    from nbrl.tasks.own import ScoredChild, Trajectory

    reference, fields = json.loads(comparison["reference"]), comparison["trajectory"]
    tasks = own_tasks(reference["place"], json.dumps(reference["settings"]))
    if fields is None:
        return {}
    files = {path: base64.b64decode(data) for path, data in fields.pop("files").items()}
    children = [ScoredChild(**{**child, "steps": own_steps(child["steps"])}) for child in fields.pop("children")]
    steps = own_steps(fields.pop("steps"))
    trajectory = Trajectory(**fields, steps=steps, files=files, children=children)
    score = tasks.score(trajectory, reference["reference"])
    worth = [float(tasks.score_child(each, trajectory, reference["reference"])) for each in children if comparison["children"]]
    paid = [*([] if score.value is None else [score.value]), *score.steps, *worth]
    if not all(math.isfinite(float(each)) for each in paid):
        raise ValueError("it pays what is no finite number")
    return {
        "success": bool(score.success),
        "value": None if score.value is None else float(score.value),
        "steps": [float(each) for each in score.steps],
        "facets": {str(name): number for name, value in score.facets.items() if (number := finite(value)) is not None},
        "children": worth,
    }


def own_steps(steps: list[dict[str, Any]]) -> list[Any]:
    """Return steps as a class is given them."""
    from nbrl.tasks.own import Step

    return [Step(**{**step, "outputs": [tuple(output) for output in step["outputs"]]}) for step in steps]


def finite(value: Any) -> float | None:
    """Return the value as a float; None where it is no finite number."""
    try:
        return number if math.isfinite(number := float(value)) else None
    except (TypeError, ValueError, OverflowError):
        return None


RULES: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {"reasoning_gym": reasoning_gym, "math": maths, "own": own}


def prepare(rule: str) -> None:
    """Import what every comparison needs, once."""
    match rule:
        case "math":
            for text in WARM:  # its parsers build their tables at first use, which every child would do again
                maths({"answer": text, "answers": [text]})
        case "reasoning_gym":
            import reasoning_gym.factory  # noqa: F401


def compare(rule: str, line: bytes, cpu: float, wall: float, results: int) -> dict[str, Any]:
    """Return the result of one comparison, made in a child. What it needs is made before the fork, so that it is made once.

    The child does not keep the descriptor of the `results`, to which it could write those of others.
    """
    if rule in ("reasoning_gym", "own"):
        reference = json.loads(json.loads(line)["reference"])
        try:
            make = (task, reference["task"]) if rule == "reasoning_gym" else (own_tasks, reference["place"])
            make[0](make[1], json.dumps(reference["settings"]))
        except Exception as error:
            return {"fault": f"{type(error).__name__}: {error}"[:FAULT_CHARS]}
    reading, writing = os.pipe()
    pid = fork()
    if pid == 0:
        try:
            os.close(reading)
            os.close(results)
            confine(cpu)
            write_all(writing, result_of(rule, line))
        finally:
            os._exit(0)
    os.close(writing)
    data, late = read_all(reading, time.monotonic() + wall)
    late = late and computing(pid, wall)
    os.close(reading)
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)  # whatever the answer started: this namespace has nothing else
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)
    try:
        result = json.loads(data)
    except (ValueError, RecursionError):
        took = f"more than {wall:g} s, {cpu:g} s of processor time" + ("" if late else ", or its process ended")
        return {"fault": f"it took {took}", "late": late}
    return result if isinstance(result, dict) else {"fault": "its result is no object"}


def result_of(rule: str, line: bytes) -> bytes:
    """Return the result of the rule, as JSON."""
    try:
        result = RULES[rule](json.loads(line))
    except Exception as error:
        result = {"fault": f"{type(error).__name__}: {error}"[:FAULT_CHARS]}
    return json.dumps(result).encode()


def write_all(writing: int, data: bytes) -> None:
    while data:
        data = data[os.write(writing, data) :]


def read_all(reading: int, end: float) -> tuple[bytes, bool]:
    """Return what is written until the other end is closed, the time is over or it is too much; whether the time is over."""
    data = b""
    while len(data) <= RESULT_BYTES:
        ready, _, _ = select.select([reading], [], [], max(0.0, end - time.monotonic()))
        if not ready:
            return b"", True
        if not (more := os.read(reading, RESULT_BYTES)):
            return data, False
        data += more
    return json.dumps({"fault": f"its score takes more than {RESULT_BYTES} bytes"}).encode(), False


def computing(pid: int, wall: float) -> bool:
    """Return whether a process that is late computed, or would have on an idle machine: it did not sleep half of the time."""
    try:
        ran, waited, _ = map(int, Path(f"/proc/{pid}/schedstat").read_text().split())
    except (OSError, ValueError):  # a kernel that does not count
        return True
    return (ran + waited) / 1e9 > wall / 2


def fork() -> int:
    """Fork once the processes of the comparison before have been reaped: there is room for few."""
    end = time.monotonic() + FORK_S
    while True:
        try:
            return os.fork()
        except BlockingIOError:
            if time.monotonic() > end:
                raise
            time.sleep(0.01)


def confine(cpu: float) -> None:
    """Set the child's own limits. What it prints is lost: standard output is the parent's."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)
    # The kernel ends at the hard limit what could ignore the soft one.
    for what, limit in {resource.RLIMIT_CPU: math.ceil(cpu), resource.RLIMIT_FSIZE: 0}.items():
        resource.setrlimit(what, (limit, limit))


def main(rule: str, cpu: float, wall: float) -> None:
    # What an imported module prints is lost: the results alone go to standard output.
    results = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    sys.path.insert(0, str(Path(__file__).with_name("own")))
    if len([name for name in os.listdir("/proc") if name.isdecimal()]) > FEW:
        sys.exit("it runs in a sandbox alone, where it may end every other process")
    # No child can then reach into the memory and the files of this process, or of the one that makes its comparison.
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))  # of what makes the comparisons' tasks too, and of each child
    prepare(rule)
    print("ready", file=results, flush=True)
    for line in sys.stdin.buffer:
        print(json.dumps(compare(rule, line, cpu, wall, results.fileno())), file=results, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]))
