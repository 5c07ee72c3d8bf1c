"""A run on a storage with finished iterations and checkpoints, made without training."""

from pathlib import Path

from nbrl.infra.manifest import write_manifest
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.layout.checkpoints import RESULT, TOKEN_LOGPROBS
from nbrl.tasks.runs.epochs import take
from nbrl.tasks.runs.history import Record
from nbrl.tasks.runs.recipes import load
from nbrl.tasks.runs.run import Run
from nbrl.tasks.runs.scope import Artifact, Weights
from nbrl.tasks.runs.writer import Writer
from tests.tasks.storing import keep

CONFIG = load("tiny-cpu")
RUN = Run(name="r", run_id="x", config_digest="d", seed=0, recipe="tiny", policy="w0", config={})
FILES = ("hf/model.safetensors", "state/0.distcp", "critic/0.distcp", TOKEN_LOGPROBS, RESULT)


def new_storage(tmp_path: Path) -> Storage:
    storage = Storage(StorageSettings(root=str(tmp_path)))
    storage.write_json(RUN.layout.identity, RUN.model_dump(mode="json"))
    return storage


def made(storage: Storage, tmp_path: Path, count: int) -> tuple[Writer, list[Record]]:
    """A run of so many iterations, each with a node's artifact, its result and a checkpoint."""
    writer = Writer(RUN, take(storage, RUN.layout).name)
    records: list[Record] = []
    for number in range(count):
        folder = tmp_path / RUN.layout.checkpoint(number + 1, writer.epoch)
        for name in FILES:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(f"{name} {number}")
        write_manifest(folder)
        scope = writer.iteration(number, records[-1].policy if records else Weights(digest="w0"))
        path = scope.layout.advantages
        artifact = Artifact(path=path, digest=storage.write_bytes(path, b"table"))
        updated = Artifact(path=scope.next_checkpoint, digest=f"w{number + 1}")
        keep(storage, scope, "advantage", ["a"], artifact)
        keep(storage, scope, "update", ["b"], updated)
        record = Record(
            iteration=number,
            cursor=0,
            checkpoint=updated.path,
            artifacts=[artifact, updated],
            metrics={},
            weights=updated.digest,
            run_id=RUN.run_id,
            epoch=writer.epoch,
            finished=1.0,
        )
        storage.create_json(scope.layout.record, record.model_dump(mode="json"))
        storage.write_json(scope.layout.record_copy, record.model_dump(mode="json"))
        records.append(record)
    return writer, records


def numbers(storage: Storage, below: str) -> list[int]:
    """Updates of the checkpoints that have files `below`."""
    keys = [key for key in storage.list(RUN.layout.checkpoints) if f"/{below}" in key]
    return [int(key.split("/")[3][:6]) for key in keys]
