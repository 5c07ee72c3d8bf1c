"""Folders on a storage, as the learner's shelf writes them there: the files, then a manifest of all of them."""

from pathlib import Path

from nbrl.infra.manifest import MANIFEST, manifest_bytes
from nbrl.infra.storage import Storage


def upload(storage: Storage, folder: Path, prefix: str) -> str:
    """Write a folder's files below `prefix`; returns the SHA-256 of the manifest."""
    return storage.write_bytes(f"{prefix}/{MANIFEST}", manifest_bytes(storage.upload_part(folder, prefix)))
