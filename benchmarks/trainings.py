"""Trainings whose held-out success is compared at equal sampled tokens; for benchmarks of ways to learn."""

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from hardware import cpu_machine

ROOT = Path(__file__).resolve().parent.parent
NBRL = str(Path(sys.executable).with_name("nbrl"))


def trained(name: str, recipe: str, settings: Sequence[str], measured: Sequence[str] = ()) -> dict[str, Any]:
    """Return a training's held-out success after each evaluation by the tokens sampled until then, and sums of metrics."""
    run = f"{name}-{int(time.time())}"
    flags = [part for setting in settings for part in ("--set", setting)]
    began = time.monotonic()
    subprocess.run([NBRL, "train", recipe, "--run", run, *flags], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    folder = ROOT / ".nbrl/storage/runs" / run
    records = [json.loads(path.read_text()) for path in sorted(folder.glob("iterations/*/record.json"))]
    success = {int(path.parent.parent.name): _success(path) for path in folder.glob("evaluations/*/nodes/evaluate-*.json")}
    tokens, updates, curve = 0.0, 0, [(0.0, success[0])]
    for record in records:
        tokens += record["metrics"]["rollout/sampled_tokens"]
        updates += not record["skipped"]
        if updates in success and not record["skipped"]:
            curve.append((tokens, success[updates]))
    total = {key: sum(record["metrics"].get(key, 0.0) for record in records) for key in measured}
    return {
        "curve": [[int(count), value] for count, value in curve],
        **{key: round(value, 1) for key, value in total.items()},
        "run": run,
        "seconds": round(time.monotonic() - began, 1),
        "hardware": cpu_machine(),
    }


def _success(path: Path) -> float:
    found = json.loads(path.read_text())["artifact"]["metrics"]["success"][0]
    return float(found)


def at(curve: object, tokens: float) -> float:
    """Return the success of a curve at a number of sampled tokens, between two evaluations in proportion."""
    counts, values = np.array(curve, dtype=float).T
    return float(np.interp(tokens, counts, values))


def compared(made: Mapping[str, Sequence[Mapping[str, Any]]], base: str) -> dict[str, Any]:
    """Return mean success and its standard error over the seeds, at all, half and a quarter of the tokens that all trainings
    reached, by way; and the differences from the way `base` by seed.
    """
    budget = min(each["curve"][-1][0] for trainings in made.values() for each in trainings)
    shown: dict[str, Any] = {"tokens": int(budget)}
    for share in (1.0, 0.5, 0.25):
        values = {way: [at(each["curve"], share * budget) for each in trainings] for way, trainings in made.items()}
        for way, each in values.items():
            shown[f"{way}@{share:g}"] = mean_and_error(each)
            if way != base:
                differences = [a - b for a, b in zip(each, values[base], strict=True)]
                shown[f"{way}-{base}@{share:g}"] = [round(value, 4) for value in differences]
    return shown


def mean_and_error(values: Sequence[float]) -> list[float]:
    """Return the mean over seeds and its standard error."""
    spread = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
    return [round(statistics.mean(values), 4), round(spread, 4)]
