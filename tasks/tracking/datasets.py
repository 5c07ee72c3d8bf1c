"""The questions of a run, by environment and split, as MLflow lists them."""

from collections.abc import Iterator

import pyarrow.compute as pc

from nbrl.infra.storage import Storage
from nbrl.infra.tracking import Tracking
from nbrl.infra.tracking_traces import Dataset
from nbrl.tasks.environments import stored
from nbrl.tasks.runs.run import Run


def log_datasets(storage: Storage, run: Run, names: list[str], tracking: Tracking) -> None:
    """Log the questions of the environments with these names, unless MLflow has all that are there."""
    there = tracking.datasets.names()
    if not {_name(name, "held_out") for name in names} <= there:
        tracking.datasets.log([each for each in _datasets(storage, run) if each.name not in there])


def _datasets(storage: Storage, run: Run) -> Iterator[Dataset]:
    """A split of several environments is one table on the storage; each is a dataset with the digest of that table."""
    layout = run.layout.data
    digests = stored.digests(storage, layout) or {}
    for split in stored.SPLITS:
        table, key = stored.read(storage, layout, split), layout.split(split)
        for counted in pc.value_counts(table["environment"]).to_pylist():
            yield Dataset(
                name=_name(counted["values"], split),
                digest=digests[key],
                uri=storage.uri(key),
                rows=counted["counts"],
                context="training" if split == "train" else "evaluation",
            )


def _name(environment: str, split: str) -> str:
    return f"{environment}/{split}"
