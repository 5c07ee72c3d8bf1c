"""A training over three machines against the same one on one machine, what a machine that falls silent costs, and a publish by
broadcast.

Usage: python benchmarks/cluster.py [--rounds 1]      as root; needs ip, nsenter, unshare

The machines are namespaces of this one (`tests/cluster/machines.py`): they share its cores and memory, so that three of them
are no faster than one, and the difference is what the cluster itself costs. Each round trains in turns on one machine, which
joins its own cluster; on three; on three whose engine gets its weights from rank 0; and on three of which one is switched off in
the second rollout, without a packet that tells the others. The last line is one JSON object with medians over the rounds: seconds
of the last iteration by node, and of the second one with and without the death.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from hardware import cpu_machine

from tests.cluster.conftest import RESOURCES
from tests.cluster.machines import Machines, lacking
from tests.cluster.runs import command, stored, trajectories, until_stored

ROOT = Path(__file__).resolve().parent.parent
WORK = {"rollout.prompts": 32, "rollout.group_size": 8, "iterations": 3}
NODES = ("rollout", "reward", "update", "publish", "record", "iteration")
ONE = '{"engine":1,"sandbox":4,"rank":2}'


def trained(machines: Machines, run: str, via: str, victim: str | None) -> list[dict[str, float]]:
    """Return the metrics of each iteration; a `victim` is switched off once the second rollout has stored something."""
    begun = machines.begin("a", *command(machines, run, **WORK, **{"publish.via": via}), log=run, **machines.variables)
    if victim is not None:
        until_stored(machines, f"{run}/iterations/000001/**/trajectories/**/*.parquet")
        machines.kill(victim)
    if begun.wait(1200):
        raise SystemExit(machines.log(run)[-3000:])
    if "failed" in {row["status"] for row in trajectories(machines, run)}:
        raise SystemExit(f"trajectories of {run} failed")
    return [stored(machines, f"runs/{run}/iterations/{number:06d}/record.json")["metrics"] for number in range(3)]


def on_machines(names: str, resources: dict[str, str], via: str = "storage", victim: str | None = None) -> list[dict[str, float]]:
    with tempfile.TemporaryDirectory(prefix="nbrl-cluster-") as folder, Machines(ROOT, Path(folder), names) as machines:
        machines.start_ray(resources)
        return trained(machines, "measured", via, victim)


def seconds(metrics: list[dict[str, float]]) -> dict[str, float]:
    """Of each node in the last iteration, where everything is warm."""
    return {name: round(metrics[-1][f"time/{name}"], 2) for name in NODES}


def median(rounds: list[dict[str, float]]) -> dict[str, float]:
    return {name: round(statistics.median(each[name] for each in rounds), 2) for name in rounds[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1)
    arguments = parser.parse_args()
    if reason := lacking():
        raise SystemExit(reason)
    # A rank and a runner of the three could be on the one that dies: the learner is started again, too.
    spared = RESOURCES | {"a": '{"rank":2}', "c": '{"sandbox":4}'}
    found: dict[str, list[Any]] = {"one": [], "three": [], "broadcast": [], "silent": []}
    for _ in range(arguments.rounds):
        found["one"].append(on_machines("a", {"a": ONE}))
        found["three"].append(on_machines("abc", spared))
        found["broadcast"].append(on_machines("abc", spared, via="broadcast"))
        found["silent"].append(on_machines("abc", spared, victim="c"))
        print(json.dumps({name: seconds(each[-1]) for name, each in found.items()}), flush=True)
    undisturbed, disturbed = (
        statistics.median(metrics[1]["time/iteration"] for metrics in found[name]) for name in ("three", "silent")
    )
    print(
        json.dumps(
            {
                "one_machine": median([seconds(each) for each in found["one"]]),
                "three_machines": median([seconds(each) for each in found["three"]]),
                "three_machines_by_broadcast": median([seconds(each) for each in found["broadcast"]]),
                "second_iteration": round(undisturbed, 1),
                "second_iteration_with_a_silent_death": round(disturbed, 1),
                "seconds_lost": round(disturbed - undisturbed, 1),
                "trajectories": WORK["rollout.prompts"] * WORK["rollout.group_size"],
                "rounds": arguments.rounds,
                "hardware": cpu_machine(),
            }
        )
    )


if __name__ == "__main__":
    main()
