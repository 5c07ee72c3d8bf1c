"""Does a program learn as fast as the notebook agent? Trains the tiny policy through both, in turns, with the same settings.

Usage: python benchmarks/learning_program.py [--seeds 0,1,2] [--set section.key=value …]

The program is that of examples/programs: it asks by the chat API, runs what the policy writes itself, and knows nothing of nbrl.
A seed has the same questions in the same order, and as many trajectories, both ways.

One JSON line for each training. The last line has the smallest share, over the seeds, that the program's final held-out success
is of the notebook's; it is to be 0.9 or more.
"""

import argparse
import json

from hardware import cpu_machine
from learning import train

LEAST = 0.9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE")
    arguments = parser.parse_args()
    shares, trajectories = list[float](), list[int]()
    for seed in map(int, arguments.seeds.split(",")):
        notebook, program = (train(recipe, seed, arguments.overrides, {}) for recipe in ("tiny", "program"))
        for made in (notebook, program):
            print(json.dumps(made), flush=True)
        shares.append(float(program["em_after"]) / float(notebook["em_after"]))
        trajectories += [int(notebook["trajectories"]), int(program["trajectories"])]
    print(
        json.dumps(
            {
                "shares": [round(share, 4) for share in shares],
                "share_least": round(min(shares), 4),
                "limit": LEAST,
                "trajectories": sorted(set(trajectories)),
                "hardware": cpu_machine(),
            }
        )
    )


if __name__ == "__main__":
    main()
