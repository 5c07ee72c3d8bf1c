"""What the tests of the stages share: Ray's map without Ray, tables of questions, progress that nobody watches."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.evaluation.answers import SCHEMA as ANSWERS
from nbrl.tasks.evaluation.summary import EvaluationSummary, Subject
from nbrl.tasks.layout.runs import EvaluationLayout
from nbrl.tasks.prepare.rows import QUESTIONS


def map_here(tables: Sequence[pa.Table], function: Callable[..., pa.Table], arguments: tuple[Any, ...]) -> pa.Table:
    """A nbrl.tasks.prepare.rows.Map in this process."""
    return pa.concat_tables([function(table, *arguments) for table in tables])


def question(name: str, text: str, *answers: str, source: str = "a", rule: str = "qa") -> dict[str, Any]:
    return {"id": name, "question": text, "answers": list(answers or ["x"]), "ability": "qa", "source": source, "rule": rule}


def table(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=QUESTIONS)


def reasons(marked: pa.Table) -> dict[str, tuple[str, str]]:
    """Reason and detail of each dropped row by its id."""
    return {row["id"]: (row["dropped"], row["detail"]) for row in marked.to_pylist() if row["dropped"] is not None}


def evaluated(root: Path, name: str, answers: list[dict[str, Any]]) -> None:
    """A finished evaluation with these answers."""
    storage, layout = Storage(StorageSettings(root=str(root))), EvaluationLayout(name)
    usual = {"status": "answered", "unscored": "", "failure": ""}
    storage.write_table(layout.answers, pa.Table.from_pylist([usual | each for each in answers], schema=ANSWERS))
    fields = {"recipe": "r", "mode": "direct", "samples": 1, "environments": ["e"], "metrics": {}, "scores": []}
    fields |= dict.fromkeys(("trajectories", "sampled_tokens", "failed", "unscored"), 0)
    fields |= dict.fromkeys(("seconds", "processor_seconds", "gpu_seconds", "finished"), 0.0)
    summary = EvaluationSummary(name=name, subject=Subject(name="m", digest="d"), **fields)  # type: ignore[arg-type]
    storage.write_json(layout.summary, summary.model_dump(mode="json"))


class Quiet:
    """A nbrl.tasks.services.progress.Progress that notes what is said and how far work came."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.done: list[tuple[int, int]] = []

    def begin(self, title: str) -> None: ...
    def started(self, name: str) -> None: ...
    def ended(self, name: str, seconds: float) -> None: ...

    def advanced(self, name: str, done: int, total: int) -> None:
        self.done.append((done, total))

    def say(self, text: str) -> None:
        self.said.append(text)
