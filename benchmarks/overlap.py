"""What a lag of one is worth where rollouts and updates wait: the real loop, lag 0 and lag 1 alternately.

Usage: python benchmarks/overlap.py [--rounds 2] [--iterations 6] [--cell 6] [--update 24]

Each cell of a small `tiny-cpu` waits, as for a tool that answers late, and each update takes at least so many seconds, without
computing (`waits/sitecustomize.py`). So both halves are about equal, and two cores are enough for both at once.

The last line is one JSON object with medians over the iterations that have another one before and behind, of all rounds:
`wall_lag0` and `wall_lag1` are seconds of an iteration, `ratio` the first over the second, `bound` what would be reached if
nothing else took time: (T_collect + T_learn) / max(T_collect, T_learn), with the seconds of the nodes in the run of lag 0.
`idle_learner`, `idle_rollout` and `overlap` are shares of an iteration with lag 1.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from hardware import cpu_machine

NBRL = str(Path(sys.executable).with_name("nbrl"))
COLLECT, LEARN = ("sample", "rollout", "reward", "select"), ("advantage", "update")
SETTINGS = {
    "rollout.prompts": 8,
    "rollout.group_size": 4,
    "evaluate.questions": 1,
    "select.drop_rate": 0.0,
    "update.tis.kind": "mask_tokens",
}


def trained(folder: Path, run: str, lag: int, iterations: int, waits: dict[str, str]) -> list[dict[str, float]]:
    """The metrics of the iterations between the first and the last."""
    settings = SETTINGS | {
        "iterations": iterations,
        "pipeline.lag": lag,
        "home": folder / "home",
        "storage.root": folder / "root",
    }
    overrides = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    path = os.pathsep.join([str(Path(__file__).with_name("waits")), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    subprocess.run(
        [NBRL, "train", "tiny-cpu", "--run", run, *overrides], check=True, env=os.environ | waits | {"PYTHONPATH": path}
    )
    records = sorted((folder / "root/runs" / run / "iterations").glob("*/record.json"))
    return [json.loads(each.read_text())["metrics"] for each in records][1:-1]


def median(metrics: list[dict[str, float]], name: str) -> float:
    return statistics.median(each[name] for each in metrics)


def seconds(metrics: list[dict[str, float]], nodes: tuple[str, ...]) -> float:
    """Of these nodes together."""
    return statistics.median(sum(each[f"time/{node}"] for node in nodes) for each in metrics)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=6)
    parser.add_argument("--cell", type=float, default=6.0, help="seconds that a cell waits")
    parser.add_argument("--update", type=float, default=24.0, help="seconds that an update takes at least")
    given = parser.parse_args()
    waits = {"NBRL_CELL_WAIT_S": str(given.cell), "NBRL_UPDATE_S": str(given.update)}
    measured: dict[int, list[dict[str, float]]] = {0: [], 1: []}
    with tempfile.TemporaryDirectory(prefix="nbrl-overlap-", ignore_cleanup_errors=True) as folder:
        for round_ in range(given.rounds):
            for lag in (0, 1):
                measured[lag] += trained(Path(folder), f"lag{lag}-{round_}", lag, given.iterations, waits)
    before, after = measured[0], measured[1]
    collect, learn = seconds(before, COLLECT), seconds(before, LEARN)
    wall = [median(each, "time/iteration") for each in (before, after)]
    result = {
        "wall_lag0": round(wall[0], 2),
        "wall_lag1": round(wall[1], 2),
        "ratio": round(wall[0] / wall[1], 3),
        "bound": round((collect + learn) / max(collect, learn), 3),
        "collect": round(collect, 2),
        "learn": round(learn, 2),
        "idle_learner": round(median(after, "pipeline/idle_learner"), 3),
        "idle_rollout": round(median(after, "pipeline/idle_rollout"), 3),
        "overlap": round(median(after, "pipeline/overlap"), 3),
        "iterations": len(after),
        "hardware": cpu_machine(),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
