"""Reads and checks the headers of safetensors files, and no weights."""

import math
import os
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, TypeAdapter, ValidationError

from nbrl.infra.paths import opened
from nbrl.tasks.errors import UpdateError, fault_in_words
from nbrl.tasks.model_folder.config_json import read_json

WEIGHT_SUFFIXES = (".safetensors", ".safetensors.index.json", ".bin", ".bin.index.json", ".pt", ".pth")
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
HEADER_BYTES = 100_000_000  # at most, by the format
DIMENSIONS = 16  # of a tensor, more than any model has
FLOATS = {"F64": 8, "F32": 4, "BF16": 2, "F16": 2}  # bytes of each

Count = Annotated[int, Field(strict=True, ge=0)]


class TensorInfo(BaseModel):
    """`dtype` is in safetensors' names; `data_offsets` are where its bytes begin and end, counted from the header's end."""

    dtype: str
    shape: Annotated[tuple[Count, ...], Field(max_length=DIMENSIONS)]
    data_offsets: tuple[Count, Count]

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


class WeightIndex(BaseModel):
    """The file of each tensor."""

    weight_map: dict[str, str]


def _without_notes(header: Any) -> Any:
    return {name: info for name, info in header.items() if name != "__metadata__"} if isinstance(header, dict) else header


HEADER = TypeAdapter(Annotated[dict[str, TensorInfo], BeforeValidator(_without_notes)])


def tensors(path: Path) -> dict[str, TensorInfo]:
    """Return the tensors by name. Raises UpdateError unless they fill the file, each with as many bytes as its shape takes."""
    try:
        length = path.stat().st_size
        with opened(path) as file:
            size = int.from_bytes(file.read(8), "little")
            if size > HEADER_BYTES:
                raise UpdateError(
                    f"{path} is not a safetensors file: its header says it has {size} bytes, {HEADER_BYTES} at most"
                )
            header = HEADER.validate_json(file.read(min(size, length)))
    except OSError as error:
        raise UpdateError(f"{path} cannot be read: {error}") from error
    except ValidationError as error:
        raise UpdateError(f"{path} is not a safetensors file: {fault_in_words(error)}") from error
    end = 0
    for name, info in sorted(header.items(), key=lambda item: item[1].data_offsets):
        begin, end = end, end + info.elements * FLOATS[info.dtype] if info.dtype in FLOATS else info.data_offsets[1]
        if info.data_offsets != (begin, end):
            first, last = info.data_offsets
            raise UpdateError(
                f"{path} has {name} at bytes {first} to {last}, by its shape {begin} to {end}: fetch or save it again"
            )
    if length != 8 + size + end:
        raise UpdateError(f"{path} is {length} bytes long, not {8 + size + end}: fetch or save it again")
    return header


def weights(folder: Path) -> dict[str, TensorInfo]:
    """Return every tensor of the folder by name. Raises UpdateError when files are incomplete."""
    if (folder / SINGLE).is_file():
        return tensors(folder / SINGLE)
    if not (folder / INDEX).is_file():
        if any(entry.name.endswith(WEIGHT_SUFFIXES) for entry in folder.iterdir()):
            raise UpdateError(
                f"{folder} has neither {SINGLE} nor {INDEX}: load the model with transformers and save it with save_pretrained"
            )
        raise UpdateError(f"{folder} holds no weights")
    places = read_json(folder / INDEX, WeightIndex).weight_map
    headers: dict[str, dict[str, TensorInfo]] = {}
    for name in sorted(set(places.values())):
        if os.path.basename(name) != name or not os.path.isfile(folder / name):
            raise UpdateError(f"{folder} lacks {name}, which its index names: fetch or save it again")
        headers[name] = tensors(folder / name)
    if lost := sorted(name for name, place in places.items() if name not in headers[place]):
        raise UpdateError(f"{folder}: {places[lost[0]]} lacks {lost[0]}, which its index names: fetch or save it again")
    return {name: headers[place][name] for name, place in places.items()}


def main_dtype(folder: Path) -> str:
    """Return the dtype of the weights in a model's folder, in safetensors' names: that of most numbers if there are several."""
    numbers = Counter[str]()
    for info in weights(folder).values():
        numbers[info.dtype] += info.elements
    return numbers.most_common(1)[0][0]
