"""`nbrl export --trajectories`: the trajectories of a run as a file that other programs read."""

import json
import os
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from nbrl.agent.formats.atif import atif
from nbrl.agent.formats.messages import conversation
from nbrl.agent.formats.otel import spans
from nbrl.agent.trajectory import Trajectory
from nbrl.flows.display.listing import files, places
from nbrl.flows.display.wanted import Wanted
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.layout.runs import EVALUATIONS, RUNS, place_of
from nbrl.tasks.layout.stages import rewards_of
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.recipes import resumed_config
from nbrl.tasks.runs.trajectories import read_trajectories, trajectories_of

Format = Literal["atif", "messages", "otel"]


def export_trajectories(storage: Storage, run: str, target: Path, form: Format, wanted: Wanted) -> int:
    """Write a line of JSON for each trajectory, the oldest first, and return how many there are. Raises ConfigError."""
    if os.path.lexists(target):
        raise ConfigError(f"{target} exists; name a file that does not, nothing is overwritten")
    keys = files(storage, run)
    kind = RUNS if keys[0].startswith(f"{RUNS}/") else EVALUATIONS
    config = resumed_config(storage, run, (), kind)
    count = 0
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, beside = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}-")
        with open(handle, "w", encoding="utf-8") as file:
            try:
                for key in reversed(places(run, keys, wanted)):
                    for row in _rows(storage, key, rewards_of(key, keys), config, form):
                        file.write(f"{json.dumps(row, ensure_ascii=False)}\n")
                        count += 1
                file.flush()
                os.link(beside, target)  # never over a file that came meanwhile
            finally:
                os.unlink(beside)
    except OSError as error:
        raise ConfigError(f"{target} could not be made: {error}") from error
    return count


def _rows(storage: Storage, key: str, rewards: str | None, config: RunConfig, form: Format) -> Iterator[dict[str, Any]]:
    """Yield the objects of one table, in its order."""
    scored = {} if rewards is None else {row["trajectory"]: row for row in storage.read_table(rewards).to_pylist()}
    for trajectory in trajectories_of(storage, key, read_trajectories(storage, key)):
        row = scored.get(trajectory.id, {})
        facts = {"where": place_of(key), "reward": row.get("total"), "success": row.get("success")}
        yield _written(trajectory, config, form, facts)


def _written(trajectory: Trajectory, config: RunConfig, form: Format, facts: dict[str, Any]) -> dict[str, Any]:
    versions = {node.weights_version for node in trajectory.sampled()} - {""}
    model = "@".join([Path(config.policy.path).name, *sorted(versions)])  # of a run its updates
    match form:
        case "atif":
            return atif(trajectory, model, version("nbrl"), facts)
        case "otel":
            return spans(trajectory, model, facts)
    return conversation(trajectory, config.agent.grammar, facts)
