"""Pure functions that judge groups: which teach, which samples of them stay, and which questions are not asked again.

Resampling on correct (GRPO-RoC of rStar2-Agent, arXiv 2508.20722): many are sampled, and the cleanest successes stay. Among
successes the paper draws by their flaws; its authors' code, as here, takes those with the fewest.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from nbrl.agent.trajectory import Status
from nbrl.tasks.seeds import derive_seed
from nbrl.tasks.selection.settings import SelectSettings

SCHEMA = pa.schema([("group", pa.string()), ("kept", pa.bool_()), ("reason", pa.string())])
TRAJECTORIES = "trajectories"  # column of those of a kept group that are learned from, where not all of them are
UNSCORED = "unscored"
DROPPED = "select/dropped/"  # metrics: how many groups, by reason
RETIRED_SCHEMA = pa.schema([("id", pa.string()), ("success", pa.float64()), ("iteration", pa.int32())])


def judge(group: str, success: list[float], fates: list[str], settings: SelectSettings, seed: int) -> dict[str, Any]:
    """Keep or drop one group, with the reason, by its trajectories' successes and fates: statuses, or `unscored`.

    A group with a trajectory that failed or could not be scored is dropped as a whole, never used in part.
    """
    for fate in (Status.FAILED, UNSCORED):
        if fate in fates:
            return {"group": group, "kept": False, "reason": str(fate)}
    reason = "all_right" if min(success) == 1 else "all_wrong" if max(success) == 0 else "signal"
    kept = reason == "signal" or np.random.default_rng(derive_seed(seed, group)).random() >= settings.drop_rate
    return {"group": group, "kept": bool(kept), "reason": reason}


def judge_table(groups: pa.Table, settings: SelectSettings, seed: int) -> pa.Table:
    """Judge a table with one row per group (group, success, fates); returns rows of SCHEMA."""
    rows = [judge(row["group"], row["success"], row["fates"], settings, seed) for row in groups.to_pylist()]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def dropped(rounds: Sequence[Mapping[str, float]]) -> Counter[str]:
    """Return the number of dropped groups by reason, from the metrics of several selections."""
    counts: Counter[str] = Counter()
    for metrics in rounds:
        for key, value in metrics.items():
            if key.startswith(DROPPED):
                counts[key.removeprefix(DROPPED)] += int(value)
    return counts


def no_signal(rounds: Sequence[Mapping[str, float]]) -> str:
    """Return why nothing was kept, in words, from the metrics of an iteration's selections."""
    counts = dropped(rounds)
    unscored = f", {counts[UNSCORED]} could not be scored" if counts[UNSCORED] else ""
    expired = f", {counts['expired']} are older than pipeline.lag" if counts["expired"] else ""
    return (
        f"of {counts.total()} groups {counts['all_wrong']} are all wrong, {counts['all_right']} all right, "
        f"{counts['failed']} failed{unscored}{expired}"
    )


def by_group(rewards: pa.Table) -> pa.Table:
    """Return one row per group, in order of appearance."""
    success: dict[str, list[float]] = defaultdict(list)
    fate: dict[str, list[str]] = defaultdict(list)
    for row in rewards.select(["group", "success", "status", "unscored"]).to_pylist():
        success[row["group"]].append(row["success"])
        fate[row["group"]].append(UNSCORED if row["unscored"] else row["status"])
    return pa.table({"group": list(success), "success": list(success.values()), "fates": list(fate.values())})


def resampled(rewards: Sequence[Mapping[str, Any]], count: int, seed: int) -> list[str]:
    """Return the ids of the `count` trajectories of a group that are learned from, in the order of `rewards`, its rows.

    Right and wrong ones keep their shares, with at least one of each kind that there is. Of the right ones those stay that
    had the fewest cells with errors and the fewest malformed steps; of the wrong ones any, at random by the seed, so that all
    kinds of failure are kept. Of equal ones chance decides, too.
    """
    chance = {row["trajectory"]: np.random.default_rng(derive_seed(seed, row["trajectory"])).random() for row in rewards}
    right = sorted((row for row in rewards if row["success"] > 0), key=lambda row: (flaws(row), chance[row["trajectory"]]))
    wrong = sorted((row for row in rewards if row["success"] <= 0), key=lambda row: chance[row["trajectory"]])
    of_right = round(count * len(right) / len(rewards))
    of_right = min(max(of_right, bool(right)), count - bool(wrong))
    chosen = {row["trajectory"] for row in [*right[:of_right], *wrong[: count - of_right]]}
    return [row["trajectory"] for row in rewards if row["trajectory"] in chosen]


def flaws(rewards: Mapping[str, Any]) -> float:
    """Share of the cells of a trajectory that failed, and of its steps that were malformed, together."""
    return (1 - float(rewards["execution"])) + (1 - float(rewards["format"]))


def retired(before: pa.Table, prompts: pa.Table, rewards: pa.Table, share: float, iteration: int) -> pa.Table:
    """Apply no-positive-resampling (ScaleRL, arXiv 2510.13786): a question that is nearly always answered right is not asked
    again. Returns rows of SCHEMA: `before`, and the questions of a round that at least this share of their group answered right.

    A group with a trajectory that failed or could not be scored says nothing of its question.
    """
    question = dict(zip(prompts["group"].to_pylist(), prompts["id"].to_pylist(), strict=True))
    retired_ids = set(before["id"].to_pylist())
    rows = before.to_pylist()
    for group in by_group(rewards).to_pylist():
        success, id_ = sum(group["success"]) / len(group["success"]), question[group["group"]]
        if success >= share and id_ not in retired_ids and not {Status.FAILED, UNSCORED} & set(group["fates"]):
            retired_ids.add(id_)
            rows.append({"id": id_, "success": success, "iteration": iteration})
    return pa.Table.from_pylist(rows, schema=RETIRED_SCHEMA)
