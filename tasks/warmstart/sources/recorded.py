"""Demonstrations from files of trajectories: nbrl's Parquet tables, notebooks that it saved, trajectories as JSON."""

import ast
import asyncio
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pyarrow as pa
from pydantic import Field, ValidationError

from nbrl.agent.episode import Episode, Task
from nbrl.agent.errors import RecordingError
from nbrl.agent.kernel import CellResult
from nbrl.agent.notebook.recording import changed, read
from nbrl.agent.policies.recorded import RecordedPolicy
from nbrl.agent.settings import AgentSettings
from nbrl.agent.tools.base import Toolbox, describe
from nbrl.agent.trajectory import SCHEMA, Status, Trajectory, from_table, with_later_columns
from nbrl.infra.arrow_files import read_parquet
from nbrl.infra.parse import json_value
from nbrl.tasks.environments.addresses import FilesAt, on_disk
from nbrl.tasks.errors import ConfigError, fault_in_words
from nbrl.tasks.warmstart.demonstrators.play import DemonstrationAgent
from nbrl.tasks.warmstart.sources.source import Demonstrations, DemonstrationSource

SUFFIXES = (".parquet", ".ipynb", ".json")


class RecordedKernel:
    """Gives the recorded outcome of each cell and runs nothing."""

    def __init__(self, recorded: Trajectory) -> None:
        self._cells = deque(step for step in recorded.steps if step.kind == "cell" and not step.malformed)
        self._answer = recorded.answer if recorded.status is Status.ANSWERED else None

    async def execute(self, code: str, timeout: float, message: str = "") -> CellResult:
        step = self._cells.popleft()
        state = {"answer": None if self._cells else self._answer, "notepad": json_value(step.notepad)}
        return CellResult("ok" if step.cell_status == "none" else step.cell_status, step.outputs, state)


async def retold(
    recorded: Sequence[Trajectory], stage: DemonstrationAgent, sampled_as: AgentSettings | None = None
) -> Demonstrations:
    """Return the trajectories as this agent would have them, written again action by action with the recorded outputs.

    What a run of nbrl `sampled_as` this very agent keeps its ids where the prompt is the same too. Left out is what this agent
    would not have met so: what is too long for it, ends otherwise, or reads otherwise in its grammar; and what called children or
    changed its own context, for how is not recorded.
    """
    written: list[Trajectory] = []
    for each in recorded:
        stage.check()
        if sampled_as == stage.agent and _same_prompt(each, stage):
            written.append(each)
        elif (again := await _again(each, stage)) is not None:
            written.append(again)
    return Demonstrations(written, len(recorded) - len(written))


def _same_prompt(recorded: Trajectory, stage: DemonstrationAgent) -> bool:
    """Return whether it has the ids of this stage's system prompt, and of its generation prompt before each action."""
    system = stage.agent.render_system_prompt(describe(stage.tools), stage.instruction)
    opening, ends = stage.tokenizer.message("system", system.text, tags=system.tags), stage.tokenizer.generation_prompt()
    if not recorded.nodes or recorded.nodes[0].token_ids != opening:
        return False
    return all(recorded.path(node.parent)[-len(ends) :] == ends for node in recorded.sampled())


async def _again(recorded: Trajectory, stage: DemonstrationAgent) -> Trajectory | None:
    """Return the trajectory, written again; None if that gives another one."""
    if recorded.status is Status.FAILED or recorded.children or any(_uses_context(step.code) for step in recorded.steps):
        return None
    task = Task(
        recorded.id, recorded.group, recorded.sample, recorded.question, recorded.ability, 0, instruction=stage.instruction
    )
    policy = RecordedPolicy(recorded.steps, stage.agent, stage.tokenizer)
    try:
        episode = Episode(task, policy, RecordedKernel(recorded), Toolbox(stage.tools), stage.tokenizer, stage.agent)
        again = await episode.run()
    except (ValueError, RecursionError, IndexError, TypeError):  # of files that may be hostile
        return None
    alike = (again.status, again.answer) == (recorded.status, recorded.answer) and not changed(recorded, again)
    kinds = [step.kind for step in again.steps] == [step.kind for step in recorded.steps]
    short = all(len(node.token_ids) <= stage.agent.action_tokens for node in again.sampled())
    return again if alike and kinds and short and again.sampled() else None


def _uses_context(code: str) -> bool:
    """Return whether a cell may change the agent's context, however it gets hold of it."""
    try:
        nodes = list(ast.walk(ast.parse(code)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "context" in code  # what ran was perhaps a part of it
    named = {node.id for node in nodes if isinstance(node, ast.Name)} | {
        node.attr for node in nodes if isinstance(node, ast.Attribute)
    }
    return "context" in named | {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}


class RecordedDemonstrations(DemonstrationSource):
    """Recorded trajectories. All that they did is learnt, so give good ones."""

    kind: Literal["recorded"] = Field(description="recorded trajectories; all that they did is learnt, so give good ones")
    path: FilesAt = Field(
        description="a table of trajectories (.parquet), a notebook (.ipynb) or a trajectory (.json) that nbrl saved, or a "
        "folder of such files; or an address"
    )

    def check(self) -> None:
        if not self._trajectories():
            raise ConfigError(f"{self.path} holds no trajectory; give one of a storage or of `nbrl distill`")

    def record(self, stage: DemonstrationAgent, seed: int) -> Demonstrations:
        named = [each.model_copy(update={"id": f"{number}-{each.id}"}) for number, each in enumerate(self._trajectories())]
        return asyncio.run(retold(named, stage))

    def files(self) -> dict[str, Path]:
        """Return the files of the folder itself: links in it are not followed."""
        with on_disk(self.path, "demonstrations", SUFFIXES) as path:
            if path.is_dir():
                return {f"{self.path}/{file.name}": file for file in _in_folder(path)}
            if not path.is_file():
                raise ConfigError(f"there are no demonstrations {path}; give a file or a folder of trajectories")
            if path.suffix not in SUFFIXES:
                raise ConfigError(f"{path} is no file of trajectories; they end in {', '.join(SUFFIXES)}")
            return {str(self.path): path}

    def _trajectories(self) -> list[Trajectory]:
        return [trajectory for name, file in self.files().items() for trajectory in _read(file, name)]


def _in_folder(folder: Path) -> list[Path]:
    paths = (path for path in folder.iterdir() if path.suffix in SUFFIXES and not path.is_symlink())
    if files := sorted(path for path in paths if path.is_file()):
        return files
    raise ConfigError(f"{folder} has no files of trajectories; they end in {', '.join(SUFFIXES)}")


def _read(path: Path, name: str) -> list[Trajectory]:
    """Return the trajectories of a file. Raises ConfigError, which calls it by its name."""
    try:
        if path.suffix == ".parquet":
            table = with_later_columns(read_parquet(path))
            lacks = [column for column in SCHEMA.names if column not in table.column_names]
            if lacks:
                raise ConfigError(
                    f"{name} is no table of trajectories: it lacks {lacks[0]}; give one of a storage or of `nbrl distill`"
                )
            return from_table(table.select(SCHEMA.names))
        return [read(path.read_bytes())]
    except ValidationError as error:
        why = fault_in_words(error)
        raise ConfigError(f"{name} is no table of trajectories: {why}; give one of a storage or of `nbrl distill`") from error
    except (RecordingError, pa.ArrowException, ValueError, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConfigError(f"{name} cannot be read: {reason}; take it away, or bring it back from a copy") from error
