"""What a dry run says that a training takes, and what it takes: memory, disk and time.

Usage: python benchmarks/estimates.py RECIPE [--iterations 3] [--set section.key=value …]

First the estimate by `--dry-run` and the measurement by `--measure`, then the training itself, of so many iterations without an
evaluation worth the name, beside which the memory of the whole machine is watched: nothing else should run. The last line is one
JSON object: bytes and seconds as estimated, as measured in one iteration, and as they were.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from hardware import cpu_machine

from nbrl.flows.cli.run_flow import run_flow
from nbrl.flows.measure import measure
from nbrl.infra.gpu import MemoryPeak
from nbrl.tasks.runs.measured import Measured
from nbrl.tasks.runs.preflight import prepared
from nbrl.tasks.runs.recipes import load

ROOT = Path(__file__).resolve().parent.parent
NBRL = str(Path(sys.executable).with_name("nbrl"))
UNITS = {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12}
SIZE = r"([\d.]+) ([kMGT]?B)"


def size(pattern: str, text: str) -> float:
    """Bytes where the pattern, which has SIZE in it, is found."""
    found = re.search(pattern, text)
    if found is None:
        raise SystemExit(f"nothing in the dry run looks like {pattern!r}:\n{text[:2000]}")
    return float(found[1]) * UNITS[found[2]]


def measured(recipe: str, overrides: list[str]) -> Measured:
    """As `--measure` does it, which shows rounded figures."""
    start = prepared(recipe, overrides, "train")
    return run_flow(start.config.home, lambda: measure(start))


def trained(recipe: str, flags: list[str]) -> tuple[float, float, list[float]]:
    """Return the most memory beyond that before, bytes of the last checkpoint, and seconds of the iterations."""
    run = f"estimates-{recipe}-{int(time.time())}"
    with MemoryPeak() as memory:
        subprocess.run([NBRL, "train", recipe, "--run", run, *flags], cwd=ROOT, check=True)
    folder = ROOT / ".nbrl/storage/runs" / run
    records = [json.loads(path.read_text()) for path in sorted(folder.glob("iterations/*/record.json"))]
    checkpoint = ROOT / ".nbrl/storage" / records[-1]["checkpoint"]
    taken = sum(path.stat().st_size for path in checkpoint.rglob("*") if path.is_file())
    shutil.rmtree(folder)
    return memory.most_bytes, taken, [record["metrics"]["time/iteration"] for record in records]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE")
    arguments = parser.parse_args()
    overrides = [f"iterations={arguments.iterations}", "evaluate.questions=1", *arguments.overrides]
    flags = [part for override in overrides for part in ("--set", override)]
    dry = [NBRL, "train", arguments.recipe, *flags, "--dry-run"]
    plan = subprocess.run(dry, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    one = measured(arguments.recipe, overrides)
    memory, checkpoint, seconds = trained(arguments.recipe, flags)
    print(
        json.dumps(
            {
                "recipe": arguments.recipe,
                "changes": arguments.overrides,
                "memory": {
                    "estimated": size(rf"# memory: about {SIZE}", plan),
                    "measured": one.memory,
                    "real": memory,
                },
                "checkpoint": {
                    "estimated": size(rf"a checkpoint takes about {SIZE}", plan),
                    "measured": one.checkpoint,
                    "real": checkpoint,
                },
                "seconds_of_an_iteration": {
                    "measured": round(one.iteration_s(load(arguments.recipe, overrides)), 1),
                    "real": [round(each, 1) for each in seconds],
                },
                "hardware": cpu_machine(),
            }
        )
    )


if __name__ == "__main__":
    main()
