"""Starts recorded sessions again, makes the recorded calls, and compares every answer and the outcome."""

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from nbrl.agent.errors import SessionError
from nbrl.agent.text import with_files
from nbrl.agent.tools.base import GIVEN_UP, WAITED
from nbrl.agent.tools.sessions import Asked, GuardedSession
from nbrl.agent.trajectory import Status, ToolCall, Trajectory
from nbrl.infra.errors import DamagedError
from nbrl.infra.parse import json_value
from nbrl.infra.storage import Storage
from nbrl.tasks.environments import stored
from nbrl.tasks.environments.environment import Environment
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.layout.branches import branch_of
from nbrl.tasks.layout.runs import stage_of
from nbrl.tasks.nodes.rollout import task_rows
from nbrl.tasks.rollout.sessions import SessionPool
from nbrl.tasks.runs.opening import stored_config
from nbrl.tasks.runs.run import Run
from nbrl.tasks.runs.scope import Scope
from nbrl.tasks.seeds import derive_seed

AT_ONCE = 32
CALL_S = 600.0
SHOWN_CHARS = 120
NOT_BEGUN = json.dumps(f"CancelledError: {WAITED}")


@dataclass
class Replayed:
    """How many sessions were compared, and how many could not be: of worlds that are not replayable, or recorded in part."""

    sessions: int = 0
    not_replayable: int = 0
    in_part: int = 0


class SessionReplay(AbstractContextManager["SessionReplay"]):
    """The sessions of a run's environments, once more; `limit_s` bounds what is asked of one besides calls."""

    def __init__(self, environments: Mapping[str, Environment], limit_s: float) -> None:
        self._sources = {name: source for name, each in environments.items() if (source := each.session_source()) is not None}
        self._pool = SessionPool(self._sources, limit_s)
        self._replayable: dict[str, bool] = {}
        self._runner = asyncio.Runner()
        self.counts = Replayed()

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._pool.close())
        self._runner.close()

    def contradictions(self, rows: Sequence[Mapping[str, Any]], trajectories: Sequence[Trajectory]) -> Iterator[str]:
        """Yield what differs in trajectories of these rows of `task_rows`; those that failed have no outcome and are left out."""
        by_id = {row["id"]: row for row in rows if row["reference"] is not None}
        played = [each for each in trajectories if each.id in by_id and each.status is not Status.FAILED]
        for start in range(0, len(played), AT_ONCE):
            yield from self._runner.run(self._several(by_id, played[start : start + AT_ONCE]))

    def differences(self, row: Mapping[str, Any], trajectory: Trajectory) -> list[str]:
        """Return what differs in one trajectory."""
        return self._runner.run(self._several({trajectory.id: row}, [trajectory]))

    async def _several(self, rows: Mapping[str, Mapping[str, Any]], trajectories: Sequence[Trajectory]) -> list[str]:
        found = await asyncio.gather(*(self._one(rows[each.id], each) for each in trajectories))
        return [f"{each.id}: {what}" for each, what in zip(trajectories, found, strict=True) if what]

    async def _one(self, row: Mapping[str, Any], trajectory: Trajectory) -> str:
        """Return the first difference; empty if there is none."""
        environment = row["environment"]
        if environment not in self._replayable:
            try:
                self._replayable[environment] = self._sources[environment].replayable
            except ConfigError as error:  # its class is gone, or is no world any more
                return f"its session cannot be played again: {error}"
        if not self._replayable[environment]:
            self.counts.not_replayable += 1
            return ""
        asked = Asked(row["question_id"], row["question"], row["ability"], row["environment"], row["reference"])
        try:
            async with self._pool.session(asked, row["seed"]) as session:
                return "" if session is None else await self._compared(row, trajectory, session)
        except SessionError as error:
            return f"its session cannot be played again: {error}"

    async def _compared(self, row: Mapping[str, Any], trajectory: Trajectory, session: GuardedSession) -> str:
        opening = await session.observe()
        text = with_files(row["question"], [file["name"] for file in row["files"]])
        if trajectory.question != (f"{text}\n\n{opening}" if opening else text):
            return "its session begins otherwise"
        tools = {tool.name: tool for tool in session.tools}
        for number, step in enumerate(trajectory.steps):
            session.set_step(number)
            for call in step.tool_calls:
                if call.name not in tools or call.result == NOT_BEGUN:
                    continue
                if not call.complete:
                    self.counts.in_part += 1
                    return ""
                try:
                    arguments = json_value(call.arguments)
                except ValueError:
                    return f"in step {number + 1} the arguments of {call.name} are no JSON"
                try:
                    async with asyncio.timeout(CALL_S):
                        said = await _answer(tools[call.name].call(arguments))
                except TimeoutError:
                    return f"in step {number + 1} {_shown(call)} does not end within {CALL_S:g} s now"
                if said != (call.ok, call.result) and call.result != json.dumps(GIVEN_UP):
                    return f"in step {number + 1} {_shown(call)} is now {said[1][:SHOWN_CHARS]}"
        if await session.outcome(trajectory) != trajectory.outcome:
            return "its session has another outcome now"
        self.counts.sessions += 1
        return ""


def row_of(storage: Storage, run: Run, key: str, trajectory: Trajectory) -> dict[str, Any]:
    """Return the row by which a trajectory in the table `key` of a run or evaluation was made. Raises DamagedError."""
    held_out, number = stage_of(key) or (True, 0)
    questions = stored.read(storage, run.layout.data, "held_out" if held_out else "train")
    ids = [trajectory.group, trajectory.group.rpartition(".")[0]]  # after the first epoch with its number behind
    asked = questions.filter(pc.is_in(questions["id"], pa.array(ids)))
    if len(asked) != 1:
        raise DamagedError(f"there is no question of {trajectory.id} in {storage.uri(run.layout.data.digests)}")
    drawn = 0 if held_out or stored_config(storage, run).pipeline.stream else number - 1  # by the first of a stream
    scope = Scope(run=run.name, run_id=run.run_id, seed=run.seed, epoch="", iteration=drawn)
    seed = derive_seed(run.seed, "evaluate") if held_out else scope.draw("rollout")
    branch = branch_of(trajectory.id)  # which has the seed of its origin
    sample = int(branch.origin.rpartition("-")[2]) if branch else trajectory.sample
    return task_rows(asked.append_column("group", pa.array([trajectory.group])), sample + 1, seed)[sample]


async def _answer(call: Any) -> tuple[bool, str]:
    """Return whether a call is answered, and its answer as a toolbox records it."""
    try:
        return True, json.dumps(await call)
    except ValueError as error:
        return False, json.dumps(f"{type(error).__name__}: {error}")


def _shown(call: ToolCall) -> str:
    return f"{call.name}({call.arguments[:SHOWN_CHARS]}) was {call.result[:SHOWN_CHARS]} and"
