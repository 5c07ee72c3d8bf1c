"""How many answers a second each scorer judges, on one core: the part `scorers` of environments.py.

Scorers take turns, several rounds; the baseline is `qa`, which compares words in Python. Those that are not ours start a confined
program for each batch and a process for each answer; the start counts. `per_s` is by the clock of one core that other work may
share, `per_cpu_s` by processor time of this process and all it started.
"""

import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nbrl.tasks.environments.kinds.gym import GymEnvironment
from nbrl.tasks.environments.kinds.own import OwnEnvironment
from nbrl.tasks.reward.rules.code.reference import reference_of as code_reference
from nbrl.tasks.reward.rules.files import reference_of
from nbrl.tasks.reward.rules.rule import judge

ROUNDS = 5
OWN = """
from nbrl.tasks.own import Question, Score, Tasks


class Even(Tasks):
    def questions(self, split):
        return [Question(f"{split} {n}?", reference=n) for n in range(2)]

    def score(self, trajectory, reference):
        return Score(success=trajectory.answer == str(reference))
"""
Row = dict[str, Any]


def row(rule: str, answer: str, answers: list[str], **fields: Any) -> Row:
    steps = [
        {"kind": "cell", "think": "t", "code": "c", "observation": "o", "cell_status": "ok", "malformed": "", "outputs": []}
    ] * 4
    asked = {"question": "?", "ability": "a", "status": "answered", "reference": "", "files": [], "steps": steps}
    return asked | {"rule": rule, "answer": answer, "answers": answers} | fields


def batches(folder: Path, count: int) -> dict[str, list[Row]]:
    """Answers for each scorer, of which every second one is right."""
    right = [n % 2 == 0 for n in range(count)]
    table = "name,height\n" + "".join(f"tree {n},{n}.5\n" for n in range(50))
    expected = reference_of({"a.csv": table.encode()})
    made = [{"path": "a.csv", "data": table.replace(".5", ".50").encode()}]
    (folder / "even.py").write_text(OWN)
    sys.path.insert(0, str(folder))
    mine = OwnEnvironment(kind="own", place="even:Even").load("environments.e").train.to_pylist()[0]
    gym = (
        GymEnvironment(kind="reasoning_gym", tasks=("chain_sum",), train=count, held_out=1)
        .load("environments.e")
        .train.to_pylist()
    )
    tests = code_reference(["assert f(2) == 4", "assert f([1]) == [1, 1]"], "", ["f"])
    return {
        "qa": [
            row("qa", "the red barn by the sea" if each else "a house", ["red barn", "the red barn by the sea"]) for each in right
        ],
        "number": [row("number", "1,234.50 m" if each else "12", ["1234.5"]) for each in right],
        "choice": [row("choice", "(b)" if each else "c", ["B"]) for each in right],
        "files": [row("files", "done", [], reference=expected, files=made if each else []) for each in right],
        "judge": [row("judge", "Keldra", ["Keldra"], grade="CORRECT" if each else "INCORRECT", ungraded="") for each in right],
        "gaia": [row("gaia", "$1,234" if each else "12", ["1234"]) for each in right],
        "math": [row("math", r"\frac{1}{2}" if each else "0.25", ["0.5"]) for each in right],
        "reasoning_gym": [row("reasoning_gym", each["answers"][0], [], reference=each["reference"]) for each in gym],
        "code": [row("code", "def f(x): return 2 * x" if each else "def f(x): return x", [], reference=tests) for each in right],
        "own": [row("own", "0" if each else "1", [], reference=mine["reference"]) for each in right],
    }


def seconds(work: Callable[[], object]) -> tuple[float, float]:
    """On the clock, and of processors."""
    began, before = time.perf_counter(), _cpu_s()
    work()
    return time.perf_counter() - began, _cpu_s() - before


def _cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def measure(count: int) -> Mapping[str, Any]:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with tempfile.TemporaryDirectory() as folder:
        rows = batches(Path(folder), count)
        taken: dict[str, list[tuple[float, float]]] = {name: [] for name in rows}
        for _ in range(ROUNDS):
            for name, batch in rows.items():
                # What takes microseconds is judged many times over, so that the clock sees it.
                times = 1 if name in ("math", "reasoning_gym", "code", "own") else 20
                clock, cpu = seconds(lambda batch=batch, times=times: [judge(batch) for _ in range(times)])  # type: ignore[misc]
                taken[name].append((times * count / clock, times * count / cpu))
    figures = {name: [statistics.median(each) for each in zip(*pairs, strict=True)] for name, pairs in taken.items()}
    found = {name: {"per_s": float(f"{clock:.3g}"), "per_cpu_s": float(f"{cpu:.3g}")} for name, (clock, cpu) in figures.items()}
    return {"part": "scorers", "batch": count, "rounds": ROUNDS, "baseline": "qa", "scorers": found}


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]) if len(sys.argv) > 1 else 64)))
