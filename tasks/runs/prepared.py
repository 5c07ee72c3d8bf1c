"""A configuration that passed preflight, on its way to the run that is opened with it."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, PrivateAttr

from nbrl.tasks.environments.environment import Tables
from nbrl.tasks.runs.config import RunConfig


class Prepared(BaseModel):
    """A configuration that passed preflight, and until it is on storage what its environments gave then.

    `questions` is the folder on storage of another run's questions, where they are taken from there.

    The tables are private: Prefect records the parameters of a flow, and of these the settings alone.
    """

    config: RunConfig
    questions: str = ""
    _tables: Mapping[str, Tables] | None = PrivateAttr(None)

    @classmethod
    def of(cls, config: RunConfig, tables: Mapping[str, Tables] | None, questions: str = "") -> "Prepared":
        made = cls(config=config, questions=questions)
        made._tables = tables
        return made

    @classmethod
    def __get_pydantic_json_schema__(cls, *_: Any) -> dict[str, Any]:
        return {"type": "object"}  # Prefect asks when a flow is imported, and that of all settings would take half a second

    @property
    def tables(self) -> Mapping[str, Tables] | None:
        """Return what each environment gave; None if that was on storage already, or has been taken."""
        return self._tables

    def take(self) -> Mapping[str, Tables] | None:
        """Return the tables, for the last time: they may be large, and a run lasts long."""
        taken, self._tables = self._tables, None
        return taken
