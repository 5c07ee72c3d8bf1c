"""What a run on a storage made, found by its records."""

import json
from pathlib import Path
from typing import Any

from nbrl.infra.home import Home
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.infra.tracking import Tracking, TrackingSettings
from nbrl.tasks.audit.audit import Audit
from nbrl.tasks.layout.runs import EvaluationLayout
from nbrl.tasks.runs.history import Record
from nbrl.tasks.runs.opening import stored_config
from nbrl.tasks.runs.run import known_run


def record(storage: Storage, run: str, iteration: int) -> Record:
    fields: dict[str, Any] = json.loads(storage.read_bytes(f"runs/{run}/iterations/{iteration:06d}/record.json"))
    del fields["sha256"]
    return Record.model_validate(fields)


def advantages(storage: Storage, run: str, iteration: int) -> str:
    """Key of an iteration's advantages."""
    return next(each.path for each in record(storage, run, iteration).artifacts if each.path.endswith("/advantages.parquet"))


def audited(root: Path | str, run: str, home: Path | None = None) -> None:
    """A run proves from its storage that it is what its records say; with its `home`, MLflow says the same."""
    storage = Storage(StorageSettings(root=str(root)))
    known = known_run(storage, run)
    tracking = Tracking(TrackingSettings(), Home(home)) if home else None
    audit = Audit(storage, stored_config(storage, known), known, lambda said: None)
    assert list(audit.contradictions(tracking)) == []


def chunks_of(storage: Storage, layout: EvaluationLayout) -> list[str]:
    """Return the keys of the chunks of an evaluation's trajectories."""
    return [key for key in storage.list(layout.evaluations) if "/trajectories/" in key]
