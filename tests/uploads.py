"""Folders on a storage, as learners write checkpoints there: the files, then a manifest of all of them."""

from pathlib import Path

from nbrl.infra.manifest import MANIFEST, write_manifest
from nbrl.infra.storage import Storage


def upload(storage: Storage, folder: Path, prefix: str) -> str:
    """Write a folder's files below `prefix`, and its manifest here too; returns the SHA-256 of the manifest."""
    write_manifest(folder)
    storage.upload_part(folder, prefix)
    return storage.write_bytes(f"{prefix}/{MANIFEST}", (folder / MANIFEST).read_bytes())
