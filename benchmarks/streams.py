"""Does a policy learn as well from a stream as from whole batches? Trains with both, in turns, for the same sampled tokens.

Usage: python benchmarks/streams.py [--seeds 0,1,2,3,4] [--prompts 64] [--iterations 7] [--ways lag0,quota,finish]

The recipe tiny-cpu, with one round for each batch: `lag0` samples each batch from the newest weights; `quota` and `finish` are
streams of complete weights with lag 2, corrected by `update.tis` (mask_tokens). Groups that are all right or all wrong are
dropped in all ways. `lag0_corrected` is as `lag0` with the same correction.

Every second policy is evaluated on held-out questions. One JSON line for each training, with the mean age of a token in updates
summed over its iterations, and the groups that expired. The last line has, of each way, mean success over the seeds at the tokens
that all trainings reached, at a half and at a quarter of them, with the standard error; and differences from `lag0` by seed.
"""

import argparse
import json

from hardware import cpu_machine
from trainings import compared, trained

SETTINGS = [
    *("select.max_rounds=1", "environments.world.held_out=128"),
    *("evaluate.every=2", "evaluate.questions=128"),
]
CORRECTED = ["update.tis.kind=mask_tokens"]
STREAM = ["pipeline.stream=true", "pipeline.lag=2", *CORRECTED]
WAYS: dict[str, list[str]] = {
    "lag0": [],
    "lag0_corrected": CORRECTED,
    "quota": [*STREAM, "pipeline.admit=quota"],
    "finish": [*STREAM, "pipeline.admit=finish"],
}
MEASURED = ("pipeline/staleness", "select/dropped/expired", "sample/prompts")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2,3,4")
    parser.add_argument("--iterations", type=int, default=7)
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--ways", default="lag0,quota,finish")
    arguments = parser.parse_args()
    made: dict[str, list[dict[str, object]]] = {way: [] for way in arguments.ways.split(",")}
    for seed in map(int, arguments.seeds.split(",")):
        for way, trainings in made.items():
            overrides = [*SETTINGS, *WAYS[way], f"seed={seed}", f"iterations={arguments.iterations}"]
            overrides.append(f"rollout.prompts={arguments.prompts}")
            trainings.append(
                {
                    "way": way,
                    "prompts": arguments.prompts,
                    "seed": seed,
                    **trained(f"streams-{way}-{seed}", "tiny-cpu", overrides, MEASURED),
                }
            )
            print(json.dumps(trainings[-1]), flush=True)
    print(
        json.dumps({"seeds": arguments.seeds, "prompts": arguments.prompts, **compared(made, "lag0"), "hardware": cpu_machine()})
    )


if __name__ == "__main__":
    main()
