"""Reads the state that torch's distributed checkpoints keep, which are pickles, without executing what they name.

A storage may hold a run that another user made. So only torch's own descriptions of tensors are made from its metadata, only
plain values and tensors from its shards, and only files beside the metadata are opened.
"""

import io
import pickle
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch.distributed.checkpoint import DefaultLoadPlanner, FileSystemReader
from torch.distributed.checkpoint import metadata as descriptions
from torch.distributed.checkpoint._nested_dict import set_element
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.planner import ReadItem

from nbrl.tasks.errors import UpdateError

METADATA_BYTES = 256 << 20


def _member(kind: Any, name: str) -> Any:
    """A member of torch's enumeration, as releases of Python before 3.11.4 pickle it: by getattr."""
    if kind is not descriptions._MEM_FORMAT_ENCODING:
        raise pickle.UnpicklingError(f"it takes {str(name)[:80]!r} of what is no enumeration of torch's")
    return kind[name]


_NAMED: dict[tuple[str, str], Any] = {
    **{
        (descriptions.__name__, each.__name__): each
        for each in (
            descriptions.BytesStorageMetadata,
            descriptions.ChunkStorageMetadata,
            descriptions.Metadata,
            descriptions.MetadataIndex,
            descriptions.StorageMeta,
            descriptions.TensorProperties,
            descriptions.TensorStorageMetadata,
            descriptions._MEM_FORMAT_ENCODING,
        )
    },
    (_StorageInfo.__module__, _StorageInfo.__name__): _StorageInfo,
    ("torch", "Size"): torch.Size,
    ("torch.serialization", "_get_layout"): torch.serialization._get_layout,
    ("pathlib", "PosixPath"): PurePosixPath,
    ("builtins", "getattr"): _member,
}


class _Descriptions(pickle.Unpickler):
    """Knows torch's descriptions of tensors and the types of their elements, and nothing else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _NAMED:
            return _NAMED[module, name]
        if module == "torch" and isinstance(dtype := getattr(torch, name, None), torch.dtype):
            return dtype
        raise pickle.UnpicklingError(f"it names {module}.{name}, which is no description of a tensor")


class ShardedReader(FileSystemReader):
    """Torch's reader of a folder, for one that anybody may have made."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> descriptions.Metadata:
        """Return the metadata. Raises UpdateError where they cannot be read."""
        folder = Path(self.path)
        try:
            if not _beside(folder, ".metadata"):
                raise pickle.UnpicklingError("its .metadata is no regular file")
            with (folder / ".metadata").open("rb") as file:
                found = _Descriptions(io.BytesIO(file.read(METADATA_BYTES))).load()
            if not isinstance(found, descriptions.Metadata):
                raise pickle.UnpicklingError("it holds no metadata")
            places = {info.relative_path for info in (found.storage_data or {}).values()}
            if elsewhere := sorted(name for name in places if not _beside(folder, name)):
                raise pickle.UnpicklingError(f"it leads to {elsewhere[0]}, which is not a file beside it")
        except Exception as error:  # what is damaged can raise anything
            raise UpdateError(f"cannot read {folder}: {type(error).__name__}: {error}") from error
        found.storage_meta = found.storage_meta or descriptions.StorageMeta()
        found.storage_meta.load_id = self.load_id
        return found


def _beside(folder: Path, name: str) -> bool:
    place = folder / name
    return place.parent == folder and place.is_file() and not place.is_symlink()


class ShardedLoadPlanner(DefaultLoadPlanner):
    """Torch's plan of a load, in which values that are no tensors are read as `torch.load` reads weights."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        name = read_item.dest_index.fqn
        set_element(self.original_state_dict, self.mappings[name], torch.load(value, weights_only=True))
