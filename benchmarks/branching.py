"""Do branches teach more from the same number of sampled tokens? Trains with plain groups and with branched ones, in turns.

Usage: python benchmarks/branching.py [--task multi_hop|gym] [--seeds 0,1,2,3,4] [--iterations 6]

`multi_hop` are the questions of the generated world that need two look-ups (two_hop, notepad), for the policy of tiny-cpu; `gym`
are chain_sum and gcd of reasoning-gym, for a policy that takes up to three steps:
`PYTHONPATH=benchmarks nbrl warmstart models/gym-steps --recipe benchmarks/recipes/gym-steps-warmstart.yaml`.

Ways: `plain` has groups of 4 and the estimator reinforce_pp_baseline; `vine` groups of 3 with two branches at one step, any;
`tree` groups of 2 with two branches at each of the two steps of least likely actions. All else is the same.

Every policy is evaluated on held-out questions after each update. Success at equal tokens is read off between two evaluations.

One JSON line for each training. The last line has, of each way, mean success over the seeds at the tokens that all trainings
reached, at a half and at a quarter of them, with the standard error; and differences from `plain` by seed.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from hardware import cpu_machine

ROOT = Path(__file__).resolve().parent.parent
NBRL = str(Path(sys.executable).with_name("nbrl"))
EVALUATED = ["evaluate.every=1", "evaluate.questions=128"]
TASKS = {
    "multi_hop": ("tiny-cpu", ["environments.world.abilities=[two_hop, notepad]", "environments.world.held_out=128"]),
    "gym": ("benchmarks/recipes/gym-steps.yaml", []),
}
WAYS = {
    "plain": ["advantage.estimator=reinforce_pp_baseline"],
    "vine": ["advantage.estimator=vine", "rollout.group_size=3", "rollout.branch={at: uniform, points: 1, width: 2}"],
    "tree": ["advantage.estimator=tree", "rollout.group_size=2", "rollout.branch={at: entropy, points: 2, width: 2}"],
}


def train(task: str, way: str, seed: int, iterations: int) -> dict[str, object]:
    """Return the held-out success of each policy, and the tokens that were sampled until then."""
    recipe, settings = TASKS[task]
    run = f"branching-{task}-{way}-{seed}-{int(time.time())}"
    overrides = [*settings, *EVALUATED, *WAYS[way], f"seed={seed}", f"iterations={iterations}"]
    flags = [part for override in overrides for part in ("--set", override)]
    began = time.monotonic()
    subprocess.run([NBRL, "train", recipe, "--run", run, *flags], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    folder = ROOT / ".nbrl/storage/runs" / run
    records = [json.loads(path.read_text()) for path in sorted(folder.glob("iterations/*/record.json"))]
    success = {int(path.parent.parent.name): _success(path) for path in folder.glob("evaluations/*/nodes/evaluate-*.json")}
    tokens, updates, curve = 0.0, 0, [(0.0, success[0])]
    for record in records:
        metrics = record["metrics"]
        tokens += metrics["rollout/sampled_tokens"]
        updates += not record["skipped"]
        curve.append((tokens, success[updates]))
    total = {name: sum(record["metrics"].get(name, 0.0) for record in records) for name in MEASURED}
    return {
        "task": task,
        "way": way,
        "seed": seed,
        "curve": [[int(count), value] for count, value in curve],
        **{name: round(value, 1) for name, value in total.items()},
        "seconds": round(time.monotonic() - began, 1),
        "hardware": cpu_machine(),
    }


MEASURED = ("rollout/trajectories", "branch/made", "branch/not_made", "update/unique_tokens", "rollout/kernel_seconds")


def _success(path: Path) -> float:
    found = json.loads(path.read_text())["artifact"]["metrics"]["success"][0]
    return float(found)


def at(curve: object, tokens: float) -> float:
    """Return the success of a curve at a number of sampled tokens, between two evaluations in proportion."""
    counts, values = np.array(curve, dtype=float).T
    return float(np.interp(tokens, counts, values))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=list(TASKS), default="multi_hop")
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--iterations", type=int, default=6)
    arguments = parser.parse_args()
    made: dict[str, list[dict[str, object]]] = {way: [] for way in WAYS}
    for seed in map(int, arguments.seeds.split(",")):
        for way in WAYS:
            made[way].append(train(arguments.task, way, seed, arguments.iterations))
            print(json.dumps(made[way][-1]), flush=True)
    budget = min(np.array(each["curve"])[-1, 0] for trainings in made.values() for each in trainings)
    shown: dict[str, object] = {"task": arguments.task, "seeds": arguments.seeds, "tokens": int(budget)}
    for share in (1.0, 0.5, 0.25):
        values = {way: [at(each["curve"], share * budget) for each in trainings] for way, trainings in made.items()}
        for way, each in values.items():
            spread = statistics.stdev(each) / len(each) ** 0.5 if len(each) > 1 else 0.0
            shown[f"{way}@{share:g}"] = [round(statistics.mean(each), 4), round(spread, 4)]
            if way != "plain":
                shown[f"{way}-plain@{share:g}"] = [round(a - b, 4) for a, b in zip(each, values["plain"], strict=True)]
    print(json.dumps({**shown, "hardware": cpu_machine()}))


if __name__ == "__main__":
    main()
