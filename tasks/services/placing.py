"""Brings the initial model to where every machine of a cluster finds it."""

import tempfile
from pathlib import Path
from typing import NamedTuple

from nbrl.infra.manifest import MANIFEST, manifest_bytes
from nbrl.infra.placed_folder import PlacedFolder
from nbrl.infra.storage import Storage
from nbrl.tasks.layout.checkpoints import initial_policy, initial_texts
from nbrl.tasks.model_folder.source import content_digest, files_of


class PlacedModel(NamedTuple):
    """A model for engines and ranks, and all of it but the weights for runners, which need its tokenizer."""

    whole: PlacedFolder
    texts: PlacedFolder


def place(folder: Path, storage: Storage, cluster: bool) -> PlacedModel:
    """The model in a folder of this machine. In a cluster of several machines it is stored, once, by its content."""
    if not cluster:
        return PlacedModel(PlacedFolder(str(folder)), PlacedFolder(str(folder)))
    digest, files = content_digest(folder), files_of(folder)
    texts = [path for path in files if path.suffix != ".safetensors"]
    return PlacedModel(_stored(files, storage, initial_policy(digest)), _stored(texts, storage, initial_texts(digest)))


def _stored(files: list[Path], storage: Storage, key: str) -> PlacedFolder:
    if not storage.exists(f"{key}/{MANIFEST}"):
        with tempfile.TemporaryDirectory(prefix="nbrl-model-") as folder:
            for path in files:  # the model's folder itself stays as it is, and may be read-only
                Path(folder, path.name).symlink_to(path.resolve())
            digests = storage.upload_part(Path(folder), key)
        storage.write_bytes(f"{key}/{MANIFEST}", manifest_bytes(digests))
    return PlacedFolder(key, storage)
