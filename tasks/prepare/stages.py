"""Stages of a preparation: what decides them, and by which names their results are found."""

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from nbrl.infra.storage import Storage, StorageSettings, sha256
from nbrl.tasks.environments.tables import data_digest
from nbrl.tasks.errors import BrokenInvariantError, ConfigError
from nbrl.tasks.evaluation import summary
from nbrl.tasks.layout.runs import EvaluationLayout
from nbrl.tasks.prepare.settings import DifficultySettings, PrepareSettings
from nbrl.tasks.runs.decisive import decisive
from nbrl.tasks.runs.steps import inputs_digest

Identity = dict[str, Any]
PREPARATION, STAGES = "preparation", "stages"
ANSWERS = "difficulty.answers"
VERSION = 1  # of the stages' code: a higher number has all stages done again


def identity(settings: PrepareSettings) -> Identity:
    """Return what decides the prepared data: settings by dotted key, and the SHA-256 of files and of an evaluation's answers."""
    leaves = decisive(settings)
    for kind, files in (("sources", settings.sources), ("evaluation", settings.evaluation)):
        leaves[kind] = [file.name for file in files]
        for file in files:
            leaves[f"{kind}.{file.name}"] = file.model_dump(mode="json") | {
                "sha256": data_digest(file.path, f"{kind}.{file.name}")
            }
    if settings.difficulty is not None:
        leaves[ANSWERS] = sha256(read_answers(settings.difficulty))
    return leaves


def read_answers(settings: DifficultySettings) -> bytes:
    """Return the Parquet file of the evaluation's answers. Raises ConfigError if no evaluation of this name is finished."""
    storage = Storage(StorageSettings(root=settings.root))
    if summary.read(storage, settings.evaluation) is None:
        raise ConfigError(
            f"difficulty.evaluation: there is no finished evaluation {settings.evaluation!r} in {settings.root}; make it by "
            f"`nbrl evaluate … --samples 8 --name {settings.evaluation}`, or correct difficulty.root"
        )
    return storage.read_bytes(EvaluationLayout(settings.evaluation).answers)


def stage_name(stage: str, decides: Any, before: Sequence[str]) -> str:
    """Return the key of a stage's results, without an ending: made of all that decides them. `before` are digests of tables."""
    content = {"stage": stage, "version": VERSION, "decides": decides, "inputs": list(before)}
    return f"{STAGES}/{stage}-{inputs_digest(content)[:16]}"


def check_whole(stage: str, before: pa.Table, after: pa.Table) -> None:
    """Raises BrokenInvariantError unless a stage gave back every row that it took: none disappears without a reason."""
    if not before["id"].combine_chunks().equals(after["id"].combine_chunks()):
        raise BrokenInvariantError(
            f"the stage {stage} took {len(before)} rows and gave back others ({len(after)}); this is a fault of nbrl"
        )
