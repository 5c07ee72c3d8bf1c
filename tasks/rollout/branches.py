"""Chooses the steps of a round's trajectories that are taken up again, by what was recorded and the run's seed alone."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from nbrl.agent.trajectory import Status, Trajectory, from_table
from nbrl.agent.trunk import playable
from nbrl.infra.parts import DIGEST, PART, ROW, joined
from nbrl.infra.storage import Storage
from nbrl.tasks.layout.branches import BranchName
from nbrl.tasks.rollout.settings import BranchSettings
from nbrl.tasks.seeds import derive_seed

SCHEMA = pa.schema(
    [("id", pa.string()), ("group", pa.string()), ("steps", pa.list_(pa.int32())), ("scores", pa.list_(pa.float64()))]
)


class BranchPoint(NamedTuple):
    """A step of a trajectory at which branches begin."""

    trajectory: str
    group: str
    step: int


def candidates(block: pa.Table, storage: Storage, settings: BranchSettings) -> pa.Table:
    """Return `candidates_of` the trajectories of rows of a round's index; Ray Data maps this function."""
    return candidates_of(from_table(joined(block, storage.read_table)), settings)


def candidates_of(trajectories: Iterable[Trajectory], settings: BranchSettings) -> pa.Table:
    """Return rows of SCHEMA: the steps at which trajectories can be branched, and scores, of which the highest are chosen."""
    rows = []
    for trajectory in trajectories:
        scores = _scores(trajectory, settings)
        rows.append({"id": trajectory.id, "group": trajectory.group, "steps": list(scores), "scores": list(scores.values())})
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def _scores(trajectory: Trajectory, settings: BranchSettings) -> dict[int, float]:
    """Return the scores of the steps before which something was done that can be played again, by step."""
    if trajectory.status is Status.FAILED:
        return {}
    possible = list[int]()
    for number, step in enumerate(trajectory.steps[1:], 1):
        if not playable(trajectory.steps[number - 1]):
            break
        if step.kind == "cell":
            possible.append(number)
    match settings.at:
        case "uniform":
            return dict.fromkeys(possible, 0.0)
        case "last_error":
            failed = [number for number in possible if trajectory.steps[number].cell_status == "error"]
            return {failed[-1]: 0.0} if failed else {}
    surprisals = {node.step: -sum(node.logprobs) / max(1, len(node.logprobs)) for node in trajectory.sampled()}
    return {number: surprisals[number] for number in possible}


def chosen(found: pa.Table, settings: BranchSettings, seed: int) -> list[BranchPoint]:
    """Return the steps that are branched: of each group those with the highest scores; of equal ones chance decides."""
    of_groups = defaultdict[str, list[tuple[float, int, BranchPoint]]](list)
    for row in found.to_pylist():
        for step, score in zip(row["steps"], row["scores"], strict=True):
            point = BranchPoint(row["id"], row["group"], step)
            of_groups[row["group"]].append((-score, derive_seed(seed, *point), point))
    return [point for points in of_groups.values() for *_, point in sorted(points)[: settings.points]]


def branch_rows(
    points: Iterable[BranchPoint],
    rows: Sequence[Mapping[str, Any]],
    places: pa.Table,
    settings: BranchSettings,
    seed: int,
) -> list[dict[str, Any]]:
    """Return a row for each branch, as task_rows makes them of trajectories; `rows` are those of the round, `places` says where
    its trajectories lie.

    A branch has the seed of its origin, which its kernel and its session draw from; its own one is that of its next action.
    """
    by_id = {row["id"]: row for row in rows}
    lies = {place["id"]: place for place in places.select(["id", PART, DIGEST, ROW]).to_pylist()}
    samples = defaultdict[str, int](lambda: max(row["sample"] for row in rows) + 1)
    made = list[dict[str, Any]]()
    for point in points:
        place = {name: lies[point.trajectory][name] for name in (PART, DIGEST, ROW)}
        for number in range(settings.width):
            branch = BranchName(point.trajectory, point.step, number)
            trunk = {**place, "steps": point.step, "seed": derive_seed(seed, branch.id)}
            made.append({**by_id[point.trajectory], "id": branch.id, "sample": samples[point.group], "trunk": trunk})
            samples[point.group] += 1
    return made
