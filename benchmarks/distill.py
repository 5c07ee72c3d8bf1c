"""How many sampled tokens does a teacher save? Trains from the rewards alone, and from a teacher alone, in turns.

Usage: python benchmarks/distill.py [--seeds 0,1,2] [--ways reward distill …]

The student is the shipped tiny policy, the teacher the same policy after seven updates of tiny-cpu with another seed. Ways:
`reward` is tiny-cpu, 256 trajectories in an update; `reward, small` has 32, in groups of 4, and `distill` 32 of different
questions, from which it learns by the reverse KL to the teacher. The learning rate of small updates is 1e-3.

Each policy is evaluated on held-out questions now and then. One JSON line for each training, with the tokens after which it had
0.95 of its teacher's success, between two evaluations in proportion; the last line has their means over the seeds, with the
standard error. Where a training never had that, its tokens are all that it sampled, and `short` counts it.
"""

import argparse
import json
from itertools import pairwise
from typing import Any

import numpy as np
from hardware import cpu_machine
from trainings import mean_and_error, trained

SHARE, TEACHERS_SEED = 0.95, 100
EVALUATED = ["evaluate.questions=256"]
SMALL = ["update.lr=1e-3", "rollout.prompts=8", "rollout.group_size=4", "iterations=40", "evaluate.every=5"]
WAYS = {
    "reward": ["iterations=7", "evaluate.every=1"],
    "reward, small": SMALL,
    "distill": [
        *("update.lr=1e-3", "rollout.prompts=32", "rollout.group_size=1", "select.drop_rate=0"),
        *("iterations=8", "evaluate.every=2"),
    ],
}


def reached(curve: list[list[float]], success: float) -> float | None:
    """Return the tokens after which a curve was at this success for the first time, between two evaluations in proportion."""
    for (before, lower), (after, higher) in pairwise(curve):
        if higher >= success:
            return float(np.interp(success, [lower, higher], [before, after]))
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    arguments = parser.parse_args()
    teacher = trained("teacher", "tiny-cpu", [*EVALUATED, *WAYS["reward"], f"seed={TEACHERS_SEED}"])
    success = SHARE * teacher["curve"][-1][1]
    print(json.dumps({"way": "teacher", "seed": TEACHERS_SEED, "success": success / SHARE, **teacher}), flush=True)
    made: dict[str, list[dict[str, Any]]] = {way: [] for way in arguments.ways}
    for seed in map(int, arguments.seeds.split(",")):
        for way in arguments.ways:
            loss = [f"update.loss={{kind: distill, teacher: {teacher['run']}}}"] if way == "distill" else []
            name = f"{way.replace(', ', '-')}-{seed}"
            found = trained(name, "tiny-cpu", [*EVALUATED, *WAYS[way], *loss, f"seed={seed}"])
            made[way].append({"way": way, "seed": seed, "tokens": reached(found["curve"], success), **found})
            print(json.dumps(made[way][-1]), flush=True)
    shown: dict[str, Any] = {"seeds": arguments.seeds, "success": round(success, 4)}
    for way, trainings in made.items():
        tokens = [each["curve"][-1][0] if each["tokens"] is None else each["tokens"] for each in trainings]
        shown[way] = {"tokens": mean_and_error(tokens), "short": sum(each["tokens"] is None for each in trainings)}
    print(json.dumps({**shown, "hardware": cpu_machine()}))


if __name__ == "__main__":
    main()
