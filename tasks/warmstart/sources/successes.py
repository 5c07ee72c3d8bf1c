"""Demonstrations from a run's own successes: rejection sampling."""

import asyncio
from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from nbrl.agent.trajectory import SAMPLED, Trajectory
from nbrl.infra.paths import expanded
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.layout.stages import is_trajectories, rewards_of
from nbrl.tasks.runs.recipes import resumed_config
from nbrl.tasks.runs.run import known_run
from nbrl.tasks.runs.trajectories import read_trajectories, trajectories_of
from nbrl.tasks.warmstart.demonstrators.play import DemonstrationAgent
from nbrl.tasks.warmstart.sources.recorded import retold
from nbrl.tasks.warmstart.sources.source import Demonstrations, DemonstrationSource


class RunDemonstrations(DemonstrationSource):
    """The right answers of a training run; its held-out questions are left out."""

    kind: Literal["run"] = Field(description="what a training run did right; its held-out questions are left out")
    name: str = Field(description="the run's name")
    root: str = Field(description="storage root of the run")
    best: int = Field(1, ge=1, description="how many trajectories of each question: those with the highest rewards")

    def check(self) -> None:
        known_run(self._storage, self.name)

    def record(self, stage: DemonstrationAgent, seed: int) -> Demonstrations:
        trajectories = successes(self._storage, self.name, self.best)
        here = [each for each in trajectories if stage.environment in ("", each.environment)]
        sampled_as = resumed_config(self._storage, self.name, []).agent
        again = asyncio.run(retold(here, stage, sampled_as))
        return Demonstrations(again.trajectories, again.left_out + len(trajectories) - len(here))

    @property
    def _storage(self) -> Storage:
        return Storage(StorageSettings(root=self.root if "://" in self.root else str(expanded(self.root).absolute())))


def successes(storage: Storage, name: str, best: int) -> list[Trajectory]:
    """Return up to `best` right trajectories of each question that a run was trained on, those of the highest reward first, and
    of equal ones the shortest. Raises ConfigError if there are none.
    """
    run = known_run(storage, name)
    keys = storage.list(f"{run.layout.folder}/iterations")
    ranked: dict[tuple[str, str], dict[str, tuple[float, int, str, str]]] = {}
    for table in filter(is_trajectories, keys):
        for group, each in _ranked(storage, table, rewards_of(table, keys)):
            ranked.setdefault(group, {})[each[2]] = each
    chosen = {each[2]: each[3] for trajectories in ranked.values() for each in sorted(trajectories.values())[:best]}
    if not chosen:
        raise ConfigError(f"run {name!r} in {storage.settings.root} has no trajectory that did its task; train it further first")
    trajectories = []
    for table in dict.fromkeys(chosen.values()):
        rows = read_trajectories(storage, table)
        mine = [index for index, id_ in enumerate(rows["id"].to_pylist()) if chosen.get(id_) == table]
        trajectories += trajectories_of(storage, table, rows.take(mine))
    return sorted(trajectories, key=lambda each: each.id)


def _ranked(storage: Storage, table: str, rewards: str | None) -> Iterator[tuple[tuple[str, str], tuple[float, int, str, str]]]:
    """Yield the successes of a table by environment and question, each with its sort key."""
    if rewards is None:
        return
    scored = {row["trajectory"]: row for row in storage.read_table(rewards).to_pylist()}
    rows = read_trajectories(storage, table).select(["id", "question", "nodes"])
    for row in rows.to_pylist():
        reward = scored.get(row["id"])
        if reward is not None and reward["success"] == 1.0:
            tokens = sum(len(node["token_ids"]) for node in row["nodes"] if node["kind"] in SAMPLED)
            yield (reward["environment"], row["question"]), (-reward["total"], tokens, row["id"], table)
