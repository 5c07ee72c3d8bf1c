"""Scores trajectories where they lie, part by part, so that no process holds all of a round."""

import pyarrow as pa

from nbrl.infra.parts import joined
from nbrl.infra.storage import Storage
from nbrl.tasks.reward.judge.settings import GRADES, NEEDED
from nbrl.tasks.reward.score import score_table
from nbrl.tasks.reward.settings import RewardSettings

COLUMNS = ["id", "group", "ability", "status", "question", "answer", "steps", "files"]


def referenced(trajectories: pa.Table, references: pa.Table) -> pa.Table:
    """Trajectories with what their answers are compared with: the columns of `references`, which are found by `group`."""
    places = {group: place for place, group in enumerate(references["group"].to_pylist())}
    asked = references.drop_columns(["group"]).take([places[group] for group in trajectories["group"].to_pylist()])
    table = trajectories.select(COLUMNS)
    for name in asked.column_names:
        table = table.append_column(name, asked[name])
    return table


def to_grade(block: pa.Table, storage: Storage, references: pa.Table) -> pa.Table:
    """The function that Ray Data maps where a model judges: from rows of a round's index to what that is told of them."""
    return referenced(joined(block, storage.read_table), references).select(NEEDED)


def score_parts(block: pa.Table, storage: Storage, references: pa.Table, settings: RewardSettings) -> pa.Table:
    """The function that Ray Data maps: from rows of a round's index, with their grades, to rows of score.SCHEMA."""
    rows = referenced(joined(block, storage.read_table), references)
    for name in GRADES:
        rows = rows.append_column(name, block[name])
    return score_table(rows, settings)
