"""What a run on a storage made, found by its records."""

import json
from typing import Any

from nbrl.infra.storage import Storage
from nbrl.tasks.runs.history import Record


def record(storage: Storage, run: str, iteration: int) -> Record:
    fields: dict[str, Any] = json.loads(storage.read_bytes(f"runs/{run}/iterations/{iteration:06d}/record.json"))
    del fields["sha256"]
    return Record.model_validate(fields)


def advantages(storage: Storage, run: str, iteration: int) -> str:
    """Key of an iteration's advantages."""
    return next(each.path for each in record(storage, run, iteration).artifacts if each.path.endswith("/advantages.parquet"))
