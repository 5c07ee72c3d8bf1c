"""Reads for the pages of a storage: runs and evaluations, their stages, and the trajectories of a stage with their rewards."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nbrl.agent.trajectory import Trajectory
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.layout.runs import EVALUATIONS, RUNS, layout_of, run_names
from nbrl.tasks.layout.stages import RoundLayout, is_trajectories, logprobs_of, rewards_of
from nbrl.tasks.runs.results import read_trajectories, trajectories_of
from nbrl.tasks.runs.run import checked_name

KINDS = (RUNS, EVALUATIONS)
COLUMNS = ["id", "group", "sample", "environment", "ability", "status", "answer", "question"]


@dataclass(frozen=True)
class ShownStage:
    """An iteration, or an evaluation, of a run: `slug` names it in an address, `tables` are the keys of its trajectories."""

    slug: str
    title: str
    tables: list[str]


@dataclass(frozen=True)
class TrajectoryRow:
    """A trajectory in a list. `reward`, `success` and `f1` are None where it was not scored."""

    id: str
    group: str
    sample: int
    environment: str
    ability: str
    status: str
    answer: str | None
    question: str
    steps: int
    reward: float | None
    success: float | None
    f1: float | None


@dataclass(frozen=True)
class ShownTrajectory:
    """One trajectory, its row of rewards, the answers that count as right, and the others of its group.

    `learner` are the learner's log-probs of the tokens of each step that it trained on.
    """

    trajectory: Trajectory
    rewards: Mapping[str, Any] | None
    expected: list[str]
    siblings: list[TrajectoryRow]
    learner: Mapping[int, list[float]]


class Reading:
    """Reads of one storage. Nothing is kept, so that a page shows what is there now."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage

    def names(self) -> list[tuple[str, str]]:
        """Return kind and name of every run and evaluation that has trajectories or began."""
        return [(kind, name) for kind in KINDS for name in run_names(self.storage.list(kind))]

    def stages(self, kind: str, name: str) -> list[ShownStage]:
        """Return the stages that have trajectories, newest first. Raises ConfigError if there are none."""
        tables: dict[str, list[str]] = {}
        for key in filter(is_trajectories, self._keys(kind, name)):
            parts = key.split("/")[2:4]
            if len(parts) == 2 and parts[1].isdecimal():
                tables.setdefault("-".join(parts), []).append(key)
        if not tables:
            raise ConfigError(f"{layout_of(kind, name).title} has no finished trajectories")
        return [ShownStage(slug, _title(slug), sorted(keys)) for slug, keys in sorted(tables.items(), reverse=True)]

    def stage(self, kind: str, name: str, slug: str) -> ShownStage:
        """Return the stage of this name. Raises ConfigError if there is none."""
        for stage in self.stages(kind, name):
            if stage.slug == slug:
                return stage
        raise ConfigError(f"{layout_of(kind, name).title} has no stage {slug!r}")

    def rows(self, kind: str, name: str, stage: ShownStage) -> list[TrajectoryRow]:
        """Return all trajectories of a stage, in the order in which they were asked for."""
        keys = self._keys(kind, name)
        return [row for table in stage.tables for row in self._rows(table, rewards_of(table, keys))]

    def trajectory(self, kind: str, name: str, stage: ShownStage, identity: str) -> ShownTrajectory:
        """Return the trajectory with this id. Raises ConfigError if the stage has none."""
        keys = self._keys(kind, name)
        for key in stage.tables:
            table = read_trajectories(self.storage, key)
            for match in trajectories_of(self.storage, key, table.filter(pc.equal(table["id"], identity))):
                rewards = rewards_of(key, keys)
                scored = self._scored(rewards).get(identity)
                siblings = [row for row in self._rows(key, rewards) if row.group == match.group]
                expected = self._expected(key, kind, name, keys, match.group)
                return ShownTrajectory(match, scored, expected, siblings, self._learner(key, keys, identity))
        raise ConfigError(f"{layout_of(kind, name).title} has no trajectory {identity!r} in {stage.title}")

    def picture(self, kind: str, name: str) -> bytes | None:
        """Return the learning curve, once the run has one."""
        key = layout_of(kind, name).curve
        return self.storage.read_bytes(key) if self.storage.exists(key) else None

    def _keys(self, kind: str, name: str) -> list[str]:
        if kind not in KINDS:
            raise ConfigError(f"there is nothing of the kind {kind!r}")
        checked_name(name)
        return self.storage.list(layout_of(kind, name).folder)

    def _rows(self, table: str, rewards: str | None) -> list[TrajectoryRow]:
        read = read_trajectories(self.storage, table)
        steps = pc.list_value_length(read["steps"]).to_pylist()
        scored, rows = self._scored(rewards), []
        for row, count in zip(read.select(COLUMNS).to_pylist(), steps, strict=True):
            reward = scored.get(row["id"], {})
            earned = [reward.get(name) for name in ("total", "success", "f1")]
            rows.append(TrajectoryRow(**row, steps=count, reward=earned[0], success=earned[1], f1=earned[2]))
        return rows

    def _scored(self, rewards: str | None) -> dict[str, dict[str, Any]]:
        if rewards is None:
            return {}
        return {row["trajectory"]: row for row in self.storage.read_table(rewards).to_pylist()}

    def _learner(self, table: str, keys: list[str], identity: str) -> dict[int, list[float]]:
        """Return the log-probs of the update that was made of a table of trajectories."""
        key = logprobs_of(table, keys)
        if key is None:
            return {}
        log_probs = self.storage.read_table(key)
        mine = log_probs.filter(pc.equal(log_probs["trajectory"], identity))
        return dict(zip(mine["step"].to_pylist(), mine["logprobs"].to_pylist(), strict=True))

    def _expected(self, table: str, kind: str, name: str, keys: list[str], group: str) -> list[str]:
        """Return the references of a question, from the prompts of its round, or from the held-out questions."""
        prompts = RoundLayout.holding(table).prompts
        stage = "/".join(table.split("/")[:4])
        places = [prompts, *(key for key in keys if key.startswith(f"{stage}/") and key.endswith("/prompts.parquet"))]
        for place in [*places, layout_of(kind, name).data.split("held_out")]:
            if place in keys:
                asked = self.storage.read_table(place)
                answers: pa.Table = asked.filter(pc.equal(asked["group" if "group" in asked.column_names else "id"], group))
                if len(answers):
                    return list(answers["answers"][0].as_py())
        return []


def _title(slug: str) -> str:
    kind, _, number = slug.partition("-")
    if kind == "iterations":
        return f"iteration {int(number) + 1}"
    return f"evaluation after {int(number)} updates"
