"""Does the loop learn? Trains a policy with a recipe, once a seed, and prints what held-out questions say.

Usage: python benchmarks/learning.py [--recipe NAME] [--seeds 0,1,2] [--lag N [--uncorrected]] [--set section.key=value …]

`tiny` is the recipe tiny-cpu, one environment, `program` the same through examples/programs; `mixed` is mixed-cpu, two
environments at once, each with its own success. All train a shipped tiny policy. `worlds` is worlds-cpu, two worlds with
sessions; its policy, that of `tiny-worlds`, is made once.
`smollm2-135m`, `smollm2-135m-format` and `smollm2-135m-long` are the recipes of these names: a
pretrained model is evaluated as it is (em_base, once), taught to act by the warm start of the same name (em_warm), and trained
(em_after).

`--lag` is pipeline.lag, corrected by update.tis.kind=mask_tokens unless it is `--uncorrected`, the control. Above 1 adapters are
trained, so compare with `--set update.lora.publish=adapter --set select.max_rounds=1`.

What takes hours goes on where it was interrupted: the same command reuses the evaluation, the warm start and the iterations of a
pretrained model that are there. To begin anew, delete `models/learning-*` and the runs `learning-*` of the storage.

One JSON line a seed; the last line holds the worst of each figure over the seeds. `seconds` are wall time of the whole training
command, with both evaluations and the start of all servers (of a shipped policy); `seconds_rl` those of its iterations alone,
`seconds_warm` those of the whole warm start. Environments are set up before.
"""

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from hardware import cpu_machine
from pretrained import evaluated, fetched, made, warmed

ROOT = Path(__file__).resolve().parent.parent
NBRL = str(Path(sys.executable).with_name("nbrl"))
PRETRAINED = ("smollm2-135m", "smollm2-135m-format", "smollm2-135m-long")
RECIPES = {
    "tiny": "tiny-cpu",
    "program": "examples/programs/recipe.yaml",
    "mixed": "mixed-cpu",
    "worlds": "worlds-cpu",
    **{name: name for name in PRETRAINED},
}


def train(recipe: str, seed: int, overrides: list[str], base: dict[str, float]) -> dict[str, object]:
    """`base` are the held-out scores of the pretrained model as it is; empty where a shipped policy is trained."""
    started_with, seconds_warm = list[str](), 0.0
    if recipe in PRETRAINED:
        warm, seconds_warm = warmed(NBRL, ROOT, recipe, fetched(NBRL, ROOT), seed)
        started_with = [f"policy.path={warm}"]
    run = f"learning-{recipe}-{seed}" if recipe in PRETRAINED else f"learning-{recipe}-{seed}-{int(time.time())}"
    flags = [part for override in [f"seed={seed}", *started_with, *overrides] for part in ("--set", override)]
    started = time.monotonic()
    command = [NBRL, "train", RECIPES[recipe], "--run", run, *flags]
    subprocess.run(command, cwd=ROOT, check=True)
    seconds = time.monotonic() - started
    folder = ROOT / ".nbrl/storage/runs" / run
    summary = json.loads((folder / "summary.json").read_text())
    records = [json.loads(path.read_text())["metrics"] for path in sorted(folder.glob("iterations/*/record.json"))]
    exact = (
        {"em_base": base["success"], "em_warm": summary["before"]["success"], "em_after": summary["after"]["success"]}
        if base
        else {"em_before": summary["before"]["em"], "em_after": summary["after"]["em"]}
    )
    return {
        "recipe": RECIPES[recipe],
        **exact,
        "environments": by_environment(summary),
        **({"abilities": by_ability(base, summary), "seconds_warm": round(seconds_warm, 1)} if base else {}),
        "curve": summary["curve"],
        **({} if base else {"seconds": round(seconds, 1)}),
        "seconds_rl": round(sum(metrics["time/iteration"] for metrics in records), 1),
        "iterations": summary["iterations"],
        "n_eval": int(summary["after"]["questions"]),
        "seed": seed,
        "trajectories": summary["trajectories"],
        "mismatch_max": summary["mismatch_max"],
        "overhead_share": round(summary["overhead_share"], 3),
        "hardware": cpu_machine(),
    }


def by_environment(summary: dict[str, dict[str, float]]) -> dict[str, list[float]]:
    """Held-out success of each environment before and after."""
    names = [key for key in summary["after"] if key.startswith("success/") and key.count("/") == 1]
    return {key.partition("/")[2]: [summary["before"][key], summary["after"][key]] for key in sorted(names)}


def by_ability(base: dict[str, float], summary: dict[str, dict[str, float]]) -> dict[str, list[float]]:
    """Held-out success at each ability of the model as it was, after the warm start and after the training."""
    names = [key for key in summary["after"] if key.startswith("success/") and key.count("/") == 2]
    stages = (base, summary["before"], summary["after"])  # of a single ability the first does not speak apart
    return {key.partition("/")[2]: [round(stage.get(key, stage["success"]), 4) for stage in stages] for key in sorted(names)}


def worst_of(several: list[dict[str, list[float]]]) -> dict[str, list[float]]:
    """Return the highest success before and the lowest after of each environment."""
    return {name: [max(each[name][0] for each in several), min(each[name][1] for each in several)] for name in several[0]}


def lagging(lag: int, uncorrected: bool) -> list[str]:
    """Return the settings of a lag."""
    if not lag:
        return []
    correction = "pipeline.uncorrected=true" if uncorrected else "update.tis.kind=mask_tokens"
    adapters = ["update.lora.publish=adapter", "select.max_rounds=1", f"checkpoints.keep_last={lag + 1}"] if lag > 1 else []
    return [f"pipeline.lag={lag}", correction, *adapters]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="tiny", choices=list(RECIPES))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE")
    parser.add_argument("--lag", type=int, default=0)
    parser.add_argument("--uncorrected", action="store_true")
    arguments = parser.parse_args()
    overrides = [*lagging(arguments.lag, arguments.uncorrected), *arguments.overrides]
    if arguments.recipe == "worlds":
        made(NBRL, ROOT, "tiny-worlds")
    base = evaluated(NBRL, ROOT, arguments.recipe, fetched(NBRL, ROOT)) if arguments.recipe in PRETRAINED else {}
    results = []
    for seed in arguments.seeds.split(","):
        results.append(train(arguments.recipe, int(seed), overrides, base))
        print(json.dumps(results[-1]), flush=True)
    worst = {
        "recipe": results[0]["recipe"],
        **{key: max(r[key] for r in results) for key in ("em_base", "em_warm", "em_before") if key in results[0]},
        "em_after": min(r["em_after"] for r in results),
        "environments": worst_of([r["environments"] for r in results]),
        **{key: max(r[key] for r in results) for key in ("seconds_warm", "seconds", "seconds_rl") if key in results[0]},
        "iterations": results[0]["iterations"],
        "n_eval": min(r["n_eval"] for r in results),
        "seeds": [r["seed"] for r in results],
        "mismatch_max": max(r["mismatch_max"] for r in results),
        "overhead_share": max(r["overhead_share"] for r in results),
        "hardware": cpu_machine(),
    }
    print(json.dumps(worst))


if __name__ == "__main__":
    main()
