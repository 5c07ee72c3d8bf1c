"""An environment from a taskset of verifiers, the package of environments that prime-rl trains on."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from nbrl.agent.tools.sessions import SessionSource
from nbrl.infra.closed import FREE
from nbrl.infra.errors import InfraError
from nbrl.infra.own_code import folder_of
from nbrl.tasks.environments.environment import Environment, Tables, finished
from nbrl.tasks.environments.kinds.own import source_digest
from nbrl.tasks.environments.questions import check, table_of
from nbrl.tasks.environments.verifiers.link import ProgramLink, ProgramOpening
from nbrl.tasks.environments.verifiers.sessions import VerifiersSource
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.reward.rules.rule import OUTCOME

CODE = Path(__file__).resolve().parents[3]
TASKS_S = 1_800.0  # of a page of tasks; data sets may be fetched meanwhile


class VerifiersEnvironment(Environment):
    """A taskset of verifiers, whose own hooks pay; it needs `make setup-verifiers`: see docs/environments.md."""

    kind: Literal["verifiers"] = Field(description="a taskset of the package verifiers; needs `make setup-verifiers`")
    taskset: str = Field(
        description="its module, beside the recipe or installed in `environment`; of a package named my-tasks it is my_tasks",
        pattern=r"^[a-z_][a-z0-9_]{0,79}$",
    )
    settings: dict[str, Any] = Field(default_factory=dict, description="settings of the taskset")
    held_out_settings: dict[str, Any] | None = Field(
        None,
        description="settings of the taskset for the questions to evaluate on, such as another split; when not set, they are the "
        "first tasks, and those to train on follow",
    )
    train: int = Field(1024, ge=0, le=100_000, description="tasks to train on")
    held_out: int = Field(256, ge=1, le=10_000, description="tasks to evaluate on")
    success_from: float = Field(0.99, allow_inf_nan=False, description="the reward from which a trajectory is a success")
    timeout_s: float = Field(
        60.0, gt=0, le=3_600, description="how long a call of a tool, or the scoring, may take", json_schema_extra=FREE
    )
    replayable: bool = Field(
        False, description="the same calls give the same answers and the same reward: `nbrl audit` makes them again"
    )
    environment: str = Field(
        ".venv-verifiers",
        description="folder of the Python environment with verifiers, relative to the current folder or else to the repository; "
        "the repository's own first when not set",
        json_schema_extra=FREE,
    )

    def load(self, key: str) -> Tables:
        """Return the first tasks of the taskset; the very first one of a split has been begun and scored."""
        if not (self._folder / "bin" / "python").exists():
            raise ConfigError(f"{key}.environment: there is no Python in {self._folder}; run make setup-verifiers")
        try:
            return finished(self._load(key))
        except ValueError as error:
            raise ConfigError(f"{key}.taskset: {error}") from error
        except InfraError as error:
            raise ConfigError(f"{key}.taskset: {self.taskset} gives no tasks: {error}") from error

    def session_source(self) -> SessionSource:
        return VerifiersSource(self._opening, self.success_from, self.timeout_s, self.replayable)

    def source(self) -> str:
        """Return the SHA-256 of the taskset's module, or of all files of its package."""
        beside = folder_of(self.taskset)
        places = [Path(beside)] if beside else []
        digests = (source_digest(self.taskset, place) for place in [*places, *self._folder.glob("lib/python3*/site-packages")])
        return next(filter(None, digests), "")

    @property
    def _folder(self) -> Path:
        here, beside = Path(self.environment).absolute(), CODE / self.environment
        # The current folder may be hostile, and hold a program of that name.
        chosen = self.environment != type(self).model_fields["environment"].default
        return beside if beside.exists() and not (chosen and here.exists()) else here

    @property
    def _opening(self) -> ProgramOpening:
        held_out = self.settings if self.held_out_settings is None else self.held_out_settings
        python = str(self._folder / "bin" / "python")
        return ProgramOpening(python, self.taskset, {"train": self.settings, "held_out": held_out})

    async def _load(self, key: str) -> Tables:
        link = await ProgramLink.open(self._opening)
        try:
            if self.held_out_settings is None:
                rows = await self._tasks(link, key, "train", self.held_out + self.train)
                held_out, train = rows[: self.held_out], rows[self.held_out :]
            else:
                held_out = await self._tasks(link, key, "held_out", self.held_out)
                train = await self._tasks(link, key, "train", self.train)
        finally:
            await link.close()
        tables = [table_of(self._rows(split, rows)) for split, rows in (("train", train), ("held_out", held_out))]
        for split, table in zip(("train", "held_out"), tables, strict=True):
            check(table, f"{key}, {split}")
        return Tables(*tables)

    async def _tasks(self, link: ProgramLink, key: str, split: str, count: int) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        while len(rows) < count:
            page = await link.ask("tasks", TASKS_S, split=split, count=count - len(rows))
            rows += page["rows"]
            if page["ended"]:
                break
        if len(rows) < count:
            which = f"{key}.train and {key}.held_out" if self.held_out_settings is None else f"{key}.{split}"
            raise ConfigError(f"{key}: {self.taskset} has {len(rows)} tasks, and {which} ask for {count}; ask for fewer")
        return rows

    def _rows(self, split: str, rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for number, row in enumerate(rows):
            yield {
                "id": f"{split}-{number:06d}",
                "question": row["question"],
                "answers": [],
                "ability": self.taskset,
                "source": f"verifiers: {self.taskset}",
                "rule": OUTCOME,
                "deadline_s": row["deadline_s"],
                "reference": json.dumps({"split": split, "data": row["data"]}),
            }
