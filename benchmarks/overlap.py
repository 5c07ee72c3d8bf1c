"""What a lag is worth where rollouts and updates wait: the real loop with lag 0 and 1, and with lag 1 and 2, alternately.

Usage: python benchmarks/overlap.py [--rounds 2] [--iterations 8] [--cell 8] [--update 25] [--tail-cell 2] [--tail-update 10]
       python benchmarks/overlap.py --stream [--rounds 2] [--iterations 10] [--tail-cell 2] [--tail-update 10]

The first three cells of each episode of a small `tiny-cpu` wait, as for a tool that answers late, so that every batch takes
about as long; each update takes at least so many seconds, without computing (`waits/sitecustomize.py`), so that two cores are
enough for all at once. With lag 0 and 1 both halves are about equal.
With lag 1 and 2, which publish adapters, the cells of one trajectory in ten wait five times as long.

The last line is one JSON object with means over the iterations that have one other before and two behind, of all rounds:
`wall_lag0` and `wall_lag1` are seconds of an iteration, `ratio` the first over the second, `bound` what would be reached if
nothing else took time: (T_collect + T_learn) / max(T_collect, T_learn), with the seconds of the nodes in the run of lag 0.
`idle_learner`, `idle_rollout` and `overlap` are shares of an iteration with lag 1. `wall_tail_lag1`, `wall_tail_lag2` and
`ratio_tail` are the same where some trajectories take long.

With `--stream` lag 1 and lag 2, with adapters, are compared with streams of complete weights, where the lengths of trajectories
have a heavy tail: lognormal (deviation 0.5 of the logarithm), and one in fifty ten times as long. `bound` is T_learn alone: what
is in flight has more than enough to do. `share_NAME` is it over the seconds of an iteration, 1 if the learner never waits, and
`rest_NAME` the seconds of the nodes that no update runs beside: of admission, publish and record.
`trained_over_admitted_tokens_NAME` is how much longer the trajectories are that are learned from than all of a batch.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from hardware import cpu_machine

NBRL = str(Path(sys.executable).with_name("nbrl"))
COLLECT, LEARN = ("sample", "rollout", "reward", "select"), ("advantage", "update")
SETTINGS = {
    "rollout.prompts": 8,
    "rollout.group_size": 4,
    "evaluate.questions": 1,
    "select.drop_rate": 0.0,
    "select.max_rounds": 1,
    "update.tis.kind": "mask_tokens",
}
ADAPTERS = {"update.lora.publish": "adapter"}
TAIL = {"NBRL_SLOW_SHARE": "0.1", "NBRL_SLOW_TIMES": "5"}
HEAVY = {"NBRL_SLOW_SHARE": "0.02", "NBRL_SLOW_TIMES": "10", "NBRL_SIGMA": "0.5"}
STREAMS = {
    "lag1": ADAPTERS | {"pipeline.lag": 1},
    "lag2": ADAPTERS | {"pipeline.lag": 2},
    "stream_quota_lag2": {"pipeline.lag": 2, "pipeline.stream": "true"},
    "stream_finish_lag2": {"pipeline.lag": 2, "pipeline.stream": "true", "pipeline.admit": "finish"},
    "stream_quota_lag8": {"pipeline.lag": 8, "pipeline.stream": "true", "checkpoints.keep_last": 9, "pipeline.in_flight": 36},
}
CELLS = "3"  # of each episode wait: most questions take as many
MIDDLE = slice(1, -2)  # iterations at either end have less than others beside them
Metrics = list[dict[str, float]]


def trained(folder: Path, run: str, settings: Mapping[str, object], waits: Mapping[str, str]) -> Metrics:
    """Return the metrics of the iterations in the middle."""
    places = {"home": folder / "home", "storage.root": folder / "root"}
    overrides = [part for key, value in {**SETTINGS, **settings, **places}.items() for part in ("--set", f"{key}={value}")]
    path = os.pathsep.join([str(Path(__file__).with_name("waits")), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    environment = os.environ | waits | {"PYTHONPATH": path}
    subprocess.run([NBRL, "train", "tiny-cpu", "--run", run, *overrides], check=True, env=environment)
    records = sorted((folder / "root/runs" / run / "iterations").glob("*/record.json"))
    return [json.loads(each.read_text())["metrics"] for each in records][MIDDLE]


def mean(metrics: Metrics, name: str) -> float:
    return statistics.mean(each[name] for each in metrics)


def seconds(metrics: Metrics, nodes: tuple[str, ...]) -> float:
    """Of these nodes together."""
    return statistics.mean(sum(each[f"time/{node}"] for node in nodes) for each in metrics)


def streams(given: argparse.Namespace) -> dict[str, object]:
    """Return the figures of `--stream`."""
    waits = {"NBRL_CELL_WAIT_S": str(given.tail_cell), "NBRL_CELLS": CELLS, "NBRL_UPDATE_S": str(given.tail_update)} | HEAVY
    measured: dict[str, Metrics] = {way: [] for way in STREAMS}
    with tempfile.TemporaryDirectory(prefix="nbrl-overlap-", ignore_cleanup_errors=True) as folder:
        for round_ in range(given.rounds):
            for way, settings in STREAMS.items():
                measured[way] += trained(Path(folder), f"{way}-{round_}", settings | {"iterations": given.iterations}, waits)
    bound = min(seconds(metrics, LEARN) for metrics in measured.values())
    result: dict[str, object] = {"bound": round(bound, 2)}
    for way, metrics in measured.items():
        wall = mean(metrics, "time/iteration")
        result[f"wall_{way}"], result[f"share_{way}"] = round(wall, 2), round(bound / wall, 3)
        names = ("pipeline/idle_learner", "pipeline/staleness", "pipeline/trained_over_admitted_tokens")
        for name in names:
            result[f"{name.rpartition('/')[2]}_{way}"] = round(mean(metrics, name), 3)
        alone = ("admit", "rollout", "reward", "select", "refill") if "stream" in way else ()
        result[f"rest_{way}"] = round(seconds(metrics, (*alone, "publish", "record")), 2)
        expired = sum(each.get("select/dropped/expired", 0.0) for each in metrics)
        result[f"expired_{way}"] = expired / sum(each["sample/prompts"] for each in metrics)
    return result | {"iterations": len(measured["lag1"]), "hardware": cpu_machine()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--cell", type=float, default=8.0, help="seconds that each of the first three cells waits")
    parser.add_argument("--update", type=float, default=25.0, help="seconds that an update takes at least")
    parser.add_argument("--tail-cell", type=float, default=2.0, help="as --cell, where one in ten takes five times as long")
    parser.add_argument("--tail-update", type=float, default=10.0, help="as --update, beside these")
    parser.add_argument("--stream", action="store_true", help="compare streams where lengths have a heavy tail")
    given = parser.parse_args()
    if given.stream:
        print(json.dumps(streams(given)))
        return
    even = {"NBRL_CELL_WAIT_S": str(given.cell), "NBRL_CELLS": CELLS, "NBRL_UPDATE_S": str(given.update)}
    tail = {"NBRL_CELL_WAIT_S": str(given.tail_cell), "NBRL_CELLS": CELLS, "NBRL_UPDATE_S": str(given.tail_update)} | TAIL
    ways = {
        "lag0": ({"pipeline.lag": 0}, even),
        "lag1": ({"pipeline.lag": 1}, even),
        "tail_lag1": (ADAPTERS | {"pipeline.lag": 1}, tail),
        "tail_lag2": (ADAPTERS | {"pipeline.lag": 2}, tail),
    }
    measured: dict[str, Metrics] = {way: [] for way in ways}
    with tempfile.TemporaryDirectory(prefix="nbrl-overlap-", ignore_cleanup_errors=True) as folder:
        for round_ in range(given.rounds):
            for way, (settings, waits) in ways.items():
                measured[way] += trained(Path(folder), f"{way}-{round_}", settings | {"iterations": given.iterations}, waits)
    before, after = measured["lag0"], measured["lag1"]
    collect, learn = seconds(before, COLLECT), seconds(before, LEARN)
    wall = {way: mean(metrics, "time/iteration") for way, metrics in measured.items()}
    result = {
        **{f"wall_{way}": round(value, 2) for way, value in wall.items()},
        "ratio": round(wall["lag0"] / wall["lag1"], 3),
        "bound": round((collect + learn) / max(collect, learn), 3),
        "ratio_tail": round(wall["tail_lag1"] / wall["tail_lag2"], 3),
        "collect": round(collect, 2),
        "learn": round(learn, 2),
        "idle_learner": round(mean(after, "pipeline/idle_learner"), 3),
        "idle_rollout": round(mean(after, "pipeline/idle_rollout"), 3),
        "overlap": round(mean(after, "pipeline/overlap"), 3),
        "iterations": len(after),
        "hardware": cpu_machine(),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
