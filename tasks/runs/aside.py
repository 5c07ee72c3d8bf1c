"""Where a measurement works: in a folder of its own on the storage, which is deleted in the end."""

import uuid

from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.layout.runs import RunLayout
from nbrl.tasks.runs.lease import holder

FOLDER = "measurements"
RUN = "measured"  # name of the run in such a folder


def new_folder() -> str:
    return f"{FOLDER}/{uuid.uuid4().hex[:8]}"


def inside(settings: StorageSettings, folder: str) -> StorageSettings:
    """The folder as a storage."""
    return settings.model_copy(update={"root": f"{settings.root.rstrip('/')}/{folder}"})


def delete_abandoned(settings: StorageSettings) -> None:
    """Delete what measurements that were killed have left."""
    storage, layout = Storage(settings), RunLayout(RUN)
    for name in {key.split("/")[1] for key in storage.list(FOLDER)}:
        folder = Storage(inside(settings, f"{FOLDER}/{name}"))
        if folder.exists(layout.lease) and holder(folder, layout) is None:
            storage.delete(f"{FOLDER}/{name}")
