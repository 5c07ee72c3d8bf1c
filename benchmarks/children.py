"""Do agents that can call others do better? Trains a recipe with and without children, from the same policy.

Usage: python benchmarks/children.py [--policy tiny|smollm2] [--seeds 0,1,2] [--iterations 6] [--ways own,parent,without]

`tiny` is the recipe children-cpu, with letters; its policy is `nbrl warmstart models/tiny-children --recipe tiny-children`.
`smollm2` has letters and errands; its policy is `nbrl warmstart models/smollm2-135m-children --from models/smollm2-135m --recipe
benchmarks/recipes/children-smollm2-warmstart.yaml`, after `nbrl model fetch smollm2-135m`.

Ways: `own` and `parent` say what actions of children learn from; `without` has no children: the cells that call them fail.

The tiny policy is evaluated on held-out questions every second update, the other one before and at the end. One JSON line for
each training, with success, sampled tokens and seconds of a trajectory by environment, before it and at its end; and success by
the tokens that were sampled in training. The last line has, of each way, the mean success over the seeds at the tokens that all
trainings reached, with the standard error.
"""

import argparse
import json
import statistics
import subprocess
import time
from pathlib import Path

import pyarrow.parquet as pq
from hardware import cpu_machine
from trainings import NBRL, ROOT, at, mean_and_error

POLICIES = {
    "tiny": ("children-cpu", {"letters": 64}),
    "smollm2": ("benchmarks/recipes/children-smollm2.yaml", {"letters": 24, "errands": 24}),
}  # recipe, and held-out questions by environment
EVERY = {"tiny": 2, "smollm2": 0}  # updates between two evaluations; 0: at the ends alone
WAYS = {"own": "agent.children.credit=own", "parent": "agent.children.credit=parent", "without": "agent.children=null"}


def train(policy: str, way: str, seed: int, iterations: int) -> dict[str, object]:
    """Return the results of a training."""
    recipe, environments = POLICIES[policy]
    run = f"children-{policy}-{way}-{seed}-{int(time.time())}"
    questions = sum(environments.values())
    settings = [WAYS[way], f"seed={seed}", f"iterations={iterations}"]
    settings += [f"evaluate.every={EVERY[policy]}", f"evaluate.questions={questions}"]
    flags = [part for setting in settings for part in ("--set", setting)]
    began = time.monotonic()
    subprocess.run([NBRL, "train", recipe, "--run", run, *flags], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    folder = ROOT / ".nbrl/storage/runs" / run
    records = [json.loads(path.read_text())["metrics"] for path in sorted(folder.glob("iterations/*/record.json"))]
    evaluated = {int(path.name): _evaluated(path, list(environments)) for path in sorted(folder.glob("evaluations/*"))}
    tokens = [0.0]
    for record in records:
        tokens.append(tokens[-1] + record["rollout/sampled_tokens"])
    curves = {
        name: [[int(tokens[updates]), found[name]["success"]] for updates, found in evaluated.items()] for name in environments
    }
    return {
        "policy": policy,
        "way": way,
        "seed": seed,
        "curves": curves,
        "before": evaluated[0],
        "after": evaluated[max(evaluated)],
        "seconds": round(time.monotonic() - began, 1),
        "hardware": cpu_machine(),
    }


def _evaluated(folder: Path, environments: list[str]) -> dict[str, dict[str, float]]:
    """Return success, and the mean tokens and seconds of a trajectory, by environment."""
    rewards = pq.read_table(next(folder.glob("*/round-0/rewards.parquet"))).to_pylist()
    index = pq.read_table(next(folder.glob("*/round-0/trajectories.index.parquet"))).to_pylist()
    found = {}
    for name in environments:
        success = [row["success"] for row in rewards if row["environment"] == name]
        mine = [row for row in index if row["environment"] == name]
        means = {key: statistics.mean(row[key] for row in mine) for key in ("sampled_tokens", "seconds")}
        found[name] = {"success": round(statistics.mean(success), 4), **{key: round(value, 2) for key, value in means.items()}}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", choices=list(POLICIES), default="tiny")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--iterations", type=int, default=6)
    parser.add_argument("--ways", default=",".join(WAYS))
    arguments = parser.parse_args()
    made: dict[str, list[dict]] = {way: [] for way in arguments.ways.split(",")}
    for seed in map(int, arguments.seeds.split(",")):
        for way, trainings in made.items():
            trainings.append(train(arguments.policy, way, seed, arguments.iterations))
            print(json.dumps(trainings[-1]), flush=True)
    environments = POLICIES[arguments.policy][1]
    budget = min(each["curves"][name][-1][0] for trainings in made.values() for each in trainings for name in environments)
    shown: dict[str, object] = {"policy": arguments.policy, "seeds": arguments.seeds, "tokens": budget}
    for way, trainings in made.items():
        for name in environments:
            values = [at(each["curves"][name], budget) for each in trainings]
            shown[f"{way}/{name}"] = mean_and_error(values)
    print(json.dumps({**shown, "hardware": cpu_machine()}))


if __name__ == "__main__":
    main()
