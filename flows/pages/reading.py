"""Reads a run or an evaluation for its pages: its stages, and the trajectories of a stage with references and rewards."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow.compute as pc

from nbrl.agent.trajectory import Trajectory
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.layout.runs import EVALUATIONS, RUNS, layout_of, title_of
from nbrl.tasks.layout.stages import RoundLayout, is_chunk, is_trajectories, logprobs_of, rewards_of
from nbrl.tasks.runs.lease import holder
from nbrl.tasks.runs.run import Kind, checked_name
from nbrl.tasks.runs.trajectories import read_trajectories, trajectories_of

KINDS: tuple[Kind, ...] = (RUNS, EVALUATIONS)
COLUMNS = ["id", "group", "environment", "ability", "status", "answer", "question"]
KEPT_CHARS = 2_000  # of a question or an answer in a list


@dataclass(frozen=True)
class ShownStage:
    """An iteration, or an evaluation, of a run: `slug` names it in an address, `tables` are the keys of its trajectories.

    It is `unfinished` while a round of it has only chunks of what has finished.
    """

    slug: str
    tables: list[str]
    unfinished: bool = False

    @property
    def title(self) -> str:
        return title_of(self.tables[0])


class TrajectoryRow(NamedTuple):
    """A trajectory in a list. `reward` and `success` are None where it was not scored."""

    id: str
    group: str
    environment: str
    ability: str
    status: str
    answer: str | None
    question: str
    expected: str
    steps: int
    reward: float | None
    success: float | None


class ShownTrajectory(NamedTuple):
    """One trajectory, its row of rewards, and the answers that count as right.

    `learner` are the learner's log-probs of the tokens of each step that it trained on.
    """

    stage: ShownStage
    trajectory: Trajectory
    rewards: Mapping[str, Any] | None
    expected: list[str]
    learner: Mapping[int, list[float]]


class RunReading:
    """Reads one run or evaluation, whose files are listed once."""

    def __init__(self, storage: Storage, kind: str, name: str) -> None:
        """Raises ConfigError for a kind or name that none has."""
        known = [each for each in KINDS if each == kind]
        if not known:
            raise ConfigError(f"there is nothing of the kind {kind!r}")
        self.storage, self.kind, self.name = storage, known[0], checked_name(name)
        self.layout = layout_of(kind, name)
        self.keys = storage.list(self.layout.folder)

    @property
    def runs_now(self) -> bool:
        """Return whether a process trains or evaluates it."""
        return holder(self.storage, self.layout) is not None

    def stages(self) -> list[ShownStage]:
        """Return the stages that have trajectories, newest first. Raises ConfigError if the run does not exist."""
        indexes, chunks = dict[str, list[str]](), dict[str, dict[str, list[str]]]()
        for key in self.keys:
            parts = key.split("/")
            slug = "-".join(parts[2:4])
            if len(parts) < 6 or not parts[3].isdecimal():
                continue
            if is_trajectories(key):
                indexes.setdefault(slug, []).append(key)
            elif is_chunk(key):
                chunks.setdefault(slug, {}).setdefault(key.partition("/round-")[2].partition("/")[0], []).append(key)
        if not self.keys:
            raise ConfigError(f"there is no {self.layout.title}")
        found = []
        for slug in sorted({*indexes, *chunks}, key=_age, reverse=True):
            whole = sorted(indexes.get(slug, []))
            done = {key.rpartition("/round-")[2].partition("/")[0] for key in whole}
            left = [key for number, keys in sorted(chunks.get(slug, {}).items()) if number not in done for key in keys]
            found.append(ShownStage(slug, [*whole, *left], bool(left)))
        return found

    def stage(self, slug: str) -> ShownStage:
        """Return the stage of this name. Raises ConfigError if there is none."""
        for stage in self.stages():
            if stage.slug == slug:
                return stage
        raise ConfigError(f"{self.layout.title} has no stage {slug!r}")

    def rows(self, stage: ShownStage) -> list[TrajectoryRow]:
        """Return all trajectories of a stage in the order in which they were asked for; of an unfinished one by id."""
        rows: dict[tuple[str, str], TrajectoryRow] = {}
        for table in stage.tables:
            read, scored, expected = read_trajectories(self.storage, table), self.scored(table), self._references(table)
            steps = pc.list_value_length(read["steps"]).to_pylist()
            for row, count in zip(read.select(COLUMNS).to_pylist(), steps, strict=True):
                reward = scored.get(row["id"], {})
                row |= {name: None if row[name] is None else row[name][:KEPT_CHARS] for name in ("answer", "question")}
                row["expected"] = " | ".join(expected.get(row["group"], []))[:KEPT_CHARS]
                shown = TrajectoryRow(**row, steps=count, reward=reward.get("total"), success=reward.get("success"))
                rows.setdefault(("" if is_chunk(table) else table, shown.id), shown)
        return [rows[place] for place in sorted(rows)] if stage.unfinished else list(rows.values())

    def trajectory(self, stage: ShownStage, identity: str) -> ShownTrajectory:
        """Return the trajectory with this id. Raises ConfigError if the stage has none."""
        for key in stage.tables:
            for match in trajectories_of(self.storage, key, read_trajectories(self.storage, key, identity)):
                expected = self._references(key).get(match.group, [])
                return ShownTrajectory(stage, match, self.scored(key).get(identity), expected, self._learner(key, identity))
        raise ConfigError(f"{self.layout.title} has no trajectory {identity!r} in {stage.title}")

    def scored(self, table: str) -> dict[str, dict[str, Any]]:
        """Return the rewards of a table of trajectories, by their ids; none where it has not been scored."""
        key = rewards_of(table, self.keys)
        return {} if key is None else {row["trajectory"]: row for row in self.storage.read_table(key).to_pylist()}

    def _learner(self, table: str, identity: str) -> dict[int, list[float]]:
        """Return the log-probs of the update that was made of a table of trajectories."""
        key = logprobs_of(table, self.keys)
        if key is None:
            return {}
        log_probs = self.storage.read_table(key)
        mine = log_probs.filter(pc.equal(log_probs["trajectory"], identity))
        return dict(zip(mine["step"].to_pylist(), mine["logprobs"].to_pylist(), strict=True))

    def _references(self, table: str) -> dict[str, list[str]]:
        """Return the references of all questions, from the prompts of the table's round, or from the held-out questions."""
        own, stage = RoundLayout.holding(table).prompts, "/".join(table.split("/")[:4])
        asked = [key for key in self.keys if key.startswith(f"{stage}/") and key.endswith("/prompts.parquet")]
        held_out = [key for key in [self.layout.data.split("held_out")] if key in self.keys]
        found: dict[str, list[str]] = {}
        for place in [own] if own in asked else asked or held_out:
            prompts = self.storage.read_table(place)
            groups = prompts["group" if "group" in prompts.column_names else "id"]
            found |= zip(groups.to_pylist(), prompts["answers"].to_pylist(), strict=True)
        return found


def _age(slug: str) -> tuple[int, bool]:
    """Return a key that sorts by time: the evaluation after an update follows the iteration that made it."""
    kind, _, number = slug.partition("-")
    return int(number) + (kind == "iterations"), kind == "evaluations"
