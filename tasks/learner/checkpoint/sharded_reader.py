"""Reads the state that torch's distributed checkpoints keep, which are pickles, without executing what they name.

A storage may hold a run that another user made. So its metadata are not unpickled: what they describe is looked at part by part,
and torch's own descriptions of tensors are made of it. Of its shards only plain values and tensors are read, and only files
beside the metadata are opened.
"""

import io
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import DefaultLoadPlanner, FileSystemReader
from torch.distributed.checkpoint import metadata as descriptions
from torch.distributed.checkpoint._nested_dict import set_element
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.planner import ReadItem

from nbrl.infra.paths import content
from nbrl.tasks.errors import UpdateError
from nbrl.tasks.learner.checkpoint.described import Named, Pairs, PickledObject, described

METADATA_BYTES = 256 << 20
MOST = 1 << 62  # of sizes and places


class _MisfitError(Exception):
    """The metadata are not what torch writes."""


def _state(value: Any, kind: type) -> dict[str, Any]:
    """Return the fields of an object of one of torch's classes."""
    if not isinstance(value, PickledObject) or value.kind != Named(kind.__module__, kind.__name__):
        named = value.kind if isinstance(value, PickledObject) else type(value).__name__
        name = ".".join(map(str, named)) if isinstance(named, Named) and all(type(each) is str for each in named) else "something"
        raise _MisfitError(f"it holds {name[:80]} where a {kind.__name__} belongs")
    return {_text(name): each for name, each in _pairs(value.state)}


def _pairs(value: Any) -> Pairs:
    if value is not None and not isinstance(value, Pairs):
        raise _MisfitError("it holds something else where names and values belong")
    return value or Pairs()


def _text(value: Any) -> str:
    if type(value) is not str:
        raise _MisfitError("it holds something else where a name belongs")
    return value


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < MOST:
        raise _MisfitError("it holds something else where a size belongs")
    return value


def _size(value: Any) -> torch.Size:
    if not isinstance(value, PickledObject) or value.kind != Named("torch", "Size") or type(value.arguments) is not tuple:
        raise _MisfitError("it holds something else where a shape belongs")
    (sizes,) = value.arguments
    if type(sizes) is not tuple:
        raise _MisfitError("it holds something else where a shape belongs")
    return torch.Size([_whole(each) for each in sizes])


def _dtype(value: Any) -> torch.dtype:
    dtype = getattr(torch, _text(value.name), None) if isinstance(value, Named) and value.module == "torch" else None
    if not isinstance(dtype, torch.dtype):
        raise _MisfitError("it holds something else where the type of numbers belongs")
    return dtype


def _stored(value: Any) -> descriptions.BytesStorageMetadata | descriptions.TensorStorageMetadata:
    """Return what is stored under a name. Of a tensor's properties only the type of its numbers counts."""
    if isinstance(value, PickledObject) and value.kind == Named(
        descriptions.__name__, descriptions.BytesStorageMetadata.__name__
    ):
        return descriptions.BytesStorageMetadata()
    fields = _state(value, descriptions.TensorStorageMetadata)
    properties = fields["properties"]
    if not isinstance(properties, PickledObject) or type(properties.state) is not tuple or type(fields["chunks"]) is not list:
        raise _MisfitError("it holds something else where a tensor belongs")
    chunks = [_state(each, descriptions.ChunkStorageMetadata) for each in fields["chunks"]]
    return descriptions.TensorStorageMetadata(
        descriptions.TensorProperties(dtype=_dtype(properties.state[0])),
        _size(fields["size"]),
        [descriptions.ChunkStorageMetadata(_size(each["offsets"]), _size(each["sizes"])) for each in chunks],
    )


def _index(value: Any) -> descriptions.MetadataIndex:
    fields = _state(value, descriptions.MetadataIndex)
    offset, index = fields.get("offset"), fields.get("index")
    return descriptions.MetadataIndex(
        _text(fields["fqn"]), None if offset is None else _size(offset), None if index is None else _whole(index)
    )


def _place(value: Any) -> _StorageInfo:
    fields = _state(value, _StorageInfo)
    if fields.get("transform_descriptors"):
        raise _MisfitError("it is stored in a form that nbrl does not write")
    return _StorageInfo(_text(fields["relative_path"]), _whole(fields["offset"]), _whole(fields["length"]))


class ShardedReader(FileSystemReader):
    """Torch's reader of a folder, for one that may be hostile."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> descriptions.Metadata:
        """Return the metadata. Raises UpdateError where they cannot be read."""
        folder = Path(self.path)
        try:
            if not _beside(folder, ".metadata"):
                raise _MisfitError("its .metadata is no regular file")
            fields = _state(described(content(folder / ".metadata", METADATA_BYTES)), descriptions.Metadata)
            metadata = descriptions.Metadata(
                {_text(name): _stored(each) for name, each in _pairs(fields["state_dict_metadata"])},
                storage_data={_index(key): _place(each) for key, each in _pairs(fields.get("storage_data"))},
            )
            places = {info.relative_path for info in metadata.storage_data.values()}
            if elsewhere := sorted(name for name in places if not _beside(folder, name)):
                raise _MisfitError(f"it leads to {elsewhere[0]}, which is not a file beside it")
        except Exception as error:  # what is damaged can raise anything
            raise UpdateError(f"cannot read {folder}: {type(error).__name__}: {error}") from error
        metadata.storage_meta = descriptions.StorageMeta(load_id=self.load_id)
        return metadata


def _beside(folder: Path, name: str) -> bool:
    place = folder / name
    return place.parent == folder and place.is_file() and not place.is_symlink()


class ShardedLoadPlanner(DefaultLoadPlanner):
    """Torch's plan of a load, in which values that are no tensors are read as `torch.load` reads weights."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        name = read_item.dest_index.fqn
        set_element(self.original_state_dict, self.mappings[name], torch.load(value, weights_only=True))
