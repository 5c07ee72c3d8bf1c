"""Which settings make a pretrained model learn? Trains the first iterations of a recipe under several, one run after another.

Usage: python benchmarks/learning_settings.py WARM_FOLDER [--recipe smollm2-135m-format] [--iterations 5]

`WARM_FOLDER` is the policy that all begin with. The recipe as it is comes first; each other run changes one thing. All sample the
same questions with the same seeds in the first iteration. The same command goes on where it was interrupted: runs are named
`learning-settings-N`. The last line is one JSON object: of each run what it changes, the success of the sampled trajectories in
each iteration, and the seconds of an iteration.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

from hardware import cpu_machine

ROOT = Path(__file__).resolve().parent.parent
NBRL = str(Path(sys.executable).with_name("nbrl"))
CHANGES = (
    (),
    ("update.lr=1.0e-5",),
    ("update.lr=1.0e-4",),
    ("rollout.prompts=32", "rollout.group_size=4"),
    ("rollout.prompts=8", "rollout.group_size=16"),
    ("update.kl_coefficient=0.05",),
    ("select.drop_rate=0.5",),
)


def first_iterations(number: int, warm: Path, recipe: str, iterations: int) -> dict[str, object]:
    run = f"learning-settings-{number}"
    settings = [f"iterations={iterations}", f"policy.path={warm}", "evaluate.questions=1", *CHANGES[number]]
    flags = [part for setting in settings for part in ("--set", setting)]
    subprocess.run([NBRL, "train", recipe, "--run", run, *flags], cwd=ROOT, check=True)
    folder = ROOT / ".nbrl/storage/runs" / run
    records = [json.loads(path.read_text())["metrics"] for path in sorted(folder.glob("iterations/*/record.json"))]
    curve = json.loads((folder / "summary.json").read_text())["curve"]
    seconds = [round(metrics["time/iteration"], 1) for metrics in records]
    return {"changes": list(CHANGES[number]), "curve": [round(each, 3) for each in curve], "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("warm", type=Path)
    parser.add_argument("--recipe", default="smollm2-135m-format")
    parser.add_argument("--iterations", type=int, default=5)
    arguments = parser.parse_args()
    found = []
    for number in range(len(CHANGES)):
        found.append(first_iterations(number, arguments.warm.resolve(), arguments.recipe, arguments.iterations))
        print(json.dumps(found[-1]), flush=True)
    print(json.dumps({"recipe": arguments.recipe, "iterations": arguments.iterations, "runs": found, "hardware": cpu_machine()}))


if __name__ == "__main__":
    main()
