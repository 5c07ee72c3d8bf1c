"""Does the loop learn? Trains a shipped tiny policy with a recipe, once a seed, and prints what held-out questions say.

Usage: python benchmarks/learning.py [--recipe tiny|mixed] [--seeds 0,1,2] [--set section.key=value …]

`tiny` is the recipe tiny-cpu, one environment; `mixed` is mixed-cpu, two environments at once, each with its own success.

One JSON line a seed; the last line holds the worst of each figure over the seeds. Seconds are wall time of the whole command,
with both evaluations and the start of all servers; environments are set up before.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

from hardware import processor

ROOT = Path(__file__).resolve().parent.parent


def train(recipe: str, seed: int, overrides: list[str]) -> dict[str, object]:
    run = f"learning-{recipe}-{seed}-{int(time.time())}"
    flags = [part for override in [f"seed={seed}", *overrides] for part in ("--set", override)]
    started = time.monotonic()
    command = [str(Path(sys.executable).with_name("nbrl")), "train", f"{recipe}-cpu", "--run", run, *flags]
    subprocess.run(command, cwd=ROOT, check=True)
    seconds = time.monotonic() - started
    summary = json.loads((ROOT / ".nbrl/storage/runs" / run / "summary.json").read_text())
    return {
        "recipe": f"{recipe}-cpu",
        "em_before": summary["before"]["em"],
        "em_after": summary["after"]["em"],
        "environments": by_environment(summary),
        "seconds": round(seconds, 1),
        "iterations": summary["iterations"],
        "n_eval": int(summary["after"]["questions"]),
        "seed": seed,
        "trajectories": summary["trajectories"],
        "mismatch_max": summary["mismatch_max"],
        "overhead_share": round(summary["overhead_share"], 3),
    }


def by_environment(summary: dict[str, dict[str, float]]) -> dict[str, list[float]]:
    """Held-out success of each environment before and after."""
    names = [key for key in summary["after"] if key.startswith("success/") and key.count("/") == 1]
    return {key.partition("/")[2]: [summary["before"][key], summary["after"][key]] for key in sorted(names)}


def worst_of(several: list[dict[str, list[float]]]) -> dict[str, list[float]]:
    """The highest success before and the lowest after of each environment."""
    return {name: [max(each[name][0] for each in several), min(each[name][1] for each in several)] for name in several[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="tiny", choices=("tiny", "mixed"))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE")
    arguments = parser.parse_args()
    results = []
    for seed in arguments.seeds.split(","):
        results.append(train(arguments.recipe, int(seed), arguments.overrides))
        print(json.dumps(results[-1]), flush=True)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    worst = {
        "recipe": results[0]["recipe"],
        "em_before": max(r["em_before"] for r in results),
        "em_after": min(r["em_after"] for r in results),
        "environments": worst_of([r["environments"] for r in results]),
        "seconds": max(r["seconds"] for r in results),
        "iterations": results[0]["iterations"],
        "n_eval": min(r["n_eval"] for r in results),
        "seeds": [r["seed"] for r in results],
        "mismatch_max": max(r["mismatch_max"] for r in results),
        "overhead_share": max(r["overhead_share"] for r in results),
        "hardware": f"{processor()}, {memory:.0f} GiB, no GPU used, Python {platform.python_version()}",
    }
    print(json.dumps(worst))


if __name__ == "__main__":
    main()
