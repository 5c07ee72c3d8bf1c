"""Does a curriculum by live pass rates teach more from the same number of sampled tokens? Trains with and without, in turns.

Usage: python benchmarks/pools.py [--seeds 0,1,2,3,4] [--iterations 10]

The recipe tiny-cpu with 128 training questions of all abilities, 32 in each iteration, so that each is asked two or three times.
`uniform` asks in the order of the run; `pools` by `select.pools` as it is. All else is the same: a group that is all right or all
wrong is dropped.

Every second policy is evaluated on held-out questions. One JSON line for each training. The last line has, of each way, mean
success over the seeds at the tokens that all trainings reached, at a half and at a quarter of them, with the standard error; and
differences from `uniform` by seed.
"""

import argparse
import json

from hardware import cpu_machine
from trainings import compared, trained

SETTINGS = [
    *("environments.world.train=128", "environments.world.held_out=128", "rollout.prompts=32"),
    *("evaluate.every=2", "evaluate.questions=128"),
]
WAYS: dict[str, list[str]] = {"uniform": [], "pools": ["select.pools={}"]}
MEASURED = ("select/kept", "sample/prompts")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--iterations", type=int, default=10)
    arguments = parser.parse_args()
    made: dict[str, list[dict[str, object]]] = {way: [] for way in WAYS}
    for seed in map(int, arguments.seeds.split(",")):
        for way, settings in WAYS.items():
            overrides = [*SETTINGS, *settings, f"seed={seed}", f"iterations={arguments.iterations}"]
            made[way].append({"way": way, "seed": seed, **trained(f"pools-{way}-{seed}", "tiny-cpu", overrides, MEASURED)})
            print(json.dumps(made[way][-1]), flush=True)
    print(json.dumps({"seeds": arguments.seeds, **compared(made, "uniform"), "hardware": cpu_machine()}))


if __name__ == "__main__":
    main()
