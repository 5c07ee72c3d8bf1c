"""What a GGUF file holds, read by the package gguf of llama.cpp."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from nbrl.tasks.errors import ConfigError

EXTRAS = {"gguf": "gguf", "torch": "train", "safetensors": "train"}  # of the packages that a conversion needs


def check_packages() -> None:
    """Raises ConfigError unless all that a conversion needs is installed."""
    for package, extra in EXTRAS.items():
        if importlib.util.find_spec(package) is None:
            raise ConfigError(f"models in GGUF need the package {package}: pip install 'nbrl[{extra}]'")


class GgufFile:
    """Metadata and tensors of a file."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError if it is no GGUF file."""
        from gguf import GGUFReader

        self._path = path
        try:
            self._reader = GGUFReader(path)
        except (ValueError, KeyError, IndexError) as error:
            raise ConfigError(f"{path} is no GGUF file: {error}; fetch it again") from error

    def value(self, key: str) -> Any:
        """Raises ConfigError if the metadata has no such key."""
        field = self._reader.get_field(key)
        if field is None:
            raise ConfigError(f"{self._path} has no {key}; only models in the format of llama.cpp's converter can be read")
        return field.contents()

    def number(self, key: str) -> float:
        """A value of 32 bits as the decimal number that it was written from: 1e-05, not 9.999999747378752e-06."""
        return float(str(np.float32(self.value(key))))

    def __contains__(self, tensor: str) -> bool:
        return any(each.name == tensor for each in self._reader.tensors)

    def tensors(self) -> Iterator[tuple[str, np.ndarray]]:
        """Every tensor by llama.cpp's name, one at a time, in float32 whatever it is quantised in."""
        from gguf import dequantize

        for tensor in self._reader.tensors:
            yield tensor.name, dequantize(tensor.data, tensor.tensor_type)
