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

from hardware import cpu_machine
from trainings import compared, trained

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


MEASURED = ("rollout/trajectories", "branch/made", "branch/not_made", "update/unique_tokens", "rollout/kernel_seconds")


def train(task: str, way: str, seed: int, iterations: int) -> dict[str, object]:
    """Return the held-out success of each policy, and the tokens that were sampled until then."""
    recipe, settings = TASKS[task]
    overrides = [*settings, *EVALUATED, *WAYS[way], f"seed={seed}", f"iterations={iterations}"]
    return {"task": task, "way": way, "seed": seed, **trained(f"branching-{task}-{way}-{seed}", recipe, overrides, MEASURED)}


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
    shown = {"task": arguments.task, "seeds": arguments.seeds, **compared(made, "plain")}
    print(json.dumps({**shown, "hardware": cpu_machine()}))


if __name__ == "__main__":
    main()
