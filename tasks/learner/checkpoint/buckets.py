"""The weights of a checkpoint in buckets: many small tensors travel faster as one."""

from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from nbrl.infra.engine.weight_group import Bucket
from nbrl.tasks.errors import UpdateError
from nbrl.tasks.model_folder.safetensors_files import FLOATS, tensors

BUCKET_BYTES = 1 << 28  # a larger tensor is a bucket of its own
DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


class Buckets:
    """The buckets of the safetensors files of a folder. A bucket holds numbers of one dtype from one file.

    Raises UpdateError where the folder has none, or others than floating-point numbers.
    """

    def __init__(self, folder: Path) -> None:
        self._files = {path: _buckets(path) for path in sorted(folder.glob("*.safetensors"))}
        if not self.all:
            raise UpdateError(f"{folder} holds no weights in safetensors files")

    @property
    def all(self) -> list[Bucket]:
        return [bucket for buckets in self._files.values() for bucket in buckets]

    def filled(self, device: torch.device) -> Iterator[Tensor]:
        """Yield the bytes of each bucket in turn: one uint8 tensor on the device. The memory of one bucket is enough."""
        for path, buckets in self._files.items():
            with safe_open(path, "pt") as file:
                for bucket in buckets:
                    parts = [file.get_tensor(name).flatten().view(torch.uint8) for name in bucket.names]
                    yield torch.cat(parts).to(device)


def _buckets(path: Path) -> list[Bucket]:
    buckets: list[Bucket] = []
    names: list[str] = []
    shapes: list[tuple[int, ...]] = []
    size, dtype = 0, ""

    def full() -> None:
        nonlocal size
        if names:
            buckets.append(Bucket(tuple(names), tuple(shapes), str(DTYPES[dtype]).removeprefix("torch.")))
        names.clear()
        shapes.clear()
        size = 0

    for name, info in tensors(path).items():
        if info.dtype not in FLOATS:
            raise UpdateError(f"{path} has {name} in {info.dtype}, which is not sent to engines: set publish.via to storage")
        more = info.elements * FLOATS[info.dtype]
        if info.dtype != dtype or size + more > BUCKET_BYTES:
            full()
        names.append(name)
        shapes.append(info.shape)
        size, dtype = size + more, info.dtype
    full()
    return buckets
