"""Computes the rewards of recorded trajectories again, from the storage alone."""

from typing import NamedTuple

import pyarrow as pa

from nbrl.infra.storage import Storage
from nbrl.tasks.nodes.reward import with_references
from nbrl.tasks.reward.judge.graded import recorded
from nbrl.tasks.reward.score import score_table
from nbrl.tasks.reward.settings import RewardSettings


class Rescored(NamedTuple):
    """`lost` says in words which grades of a model are gone, without which `rewards` are not what they were; or it is empty."""

    rewards: pa.Table
    lost: str


def rescored(
    storage: Storage, settings: RewardSettings, trajectories: pa.Table, prompts: pa.Table, rewards: pa.Table
) -> Rescored:
    """What the trajectories earn. No model is asked: its grades are read, and where it gave none `rewards` say so."""
    unscored = {row["trajectory"]: row["unscored"] for row in rewards.select(["trajectory", "unscored"]).to_pylist()}
    rows, gone = recorded(with_references(trajectories, prompts), unscored, settings.judge, storage)
    lost = f"grades of the judge are gone, so its rewards cannot be checked: {len(gone)} in all, first {gone[0]}" if gone else ""
    again = score_table(rows, settings)
    return Rescored(_with_faults(again, list(unscored.values())), lost)


def _with_faults(again: pa.Table, recorded_faults: list[str]) -> pa.Table:
    """Faults in the words that were recorded: those of another process may name other addresses."""
    found = again["unscored"].to_pylist()
    if len(found) != len(recorded_faults):
        return again
    words = [recorded_ if fault and recorded_ else fault for fault, recorded_ in zip(found, recorded_faults, strict=True)]
    return again.set_column(again.column_names.index("unscored"), "unscored", pa.array(words, pa.string()))
