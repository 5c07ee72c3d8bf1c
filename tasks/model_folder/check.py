"""Checks that a Hugging Face model folder can be trained. Headers are read and no weights, so this loads no torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import BaseModel

from nbrl.tasks.errors import UpdateError
from nbrl.tasks.model_folder.config_json import PLAIN_HEADS, architecture, read_json
from nbrl.tasks.model_folder.safetensors_files import FLOATS, tensors, weights

ADAPTER_CONFIG, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"  # peft's names
EMBEDDING = "model.embed_tokens.weight"


def check_model(path: str) -> None:
    """Raises UpdateError, in one sentence, unless the folder holds a whole model that may be trained."""
    folder = Path(path)
    config = architecture(folder)
    stored = weights(folder)
    layers = {name.split(".")[2] for name in stored if name.startswith("model.layers.") and name.count(".") > 2}
    for layer in range(config.num_hidden_layers or 0) if layers else ():
        if str(layer) not in layers:
            raise UpdateError(f"{path} holds no weights of layer {layer}, but config.json says {config.num_hidden_layers} layers")
    unsupported = sorted(name for name, info in stored.items() if info.dtype not in FLOATS)
    if unsupported:
        raise UpdateError(
            f"{path} holds {stored[unsupported[0]].dtype} weights ({unsupported[0]}); only unquantised ones can be trained"
        )
    if EMBEDDING not in stored and config.model_type in PLAIN_HEADS:
        raise UpdateError(f"{path} holds no {EMBEDDING}; fetch or save it again")
    rows = config.rows()
    for name, info in stored.items():
        layer_name = name.removesuffix(".weight").rpartition(".")[2]
        expected = (rows.get(layer_name, 0), config.hidden_size or 0)
        if layer_name in rows and config.hidden_size is not None and info.shape != expected:
            raise UpdateError(f"{path} holds {name} of {_size(info.shape)}, but by config.json it is {_size(expected)}")


class Adapter(BaseModel):
    """The fields of adapter_config.json that say whether there is something to load."""

    peft_type: Literal["LORA"]
    r: int


def check_adapter(folder: Path) -> None:
    """Raises UpdateError, in one sentence, unless the folder holds an adapter as peft loads it."""
    read_json(folder / ADAPTER_CONFIG, Adapter)
    tensors(folder / ADAPTER_WEIGHTS)


def check_targets(path: str, names: Sequence[str]) -> None:
    """Raises UpdateError when the model has no layers of one of these names that LoRA could adapt."""
    layers = linear_layers(path)
    if unknown := [name for name in names if name not in layers]:
        raise UpdateError(
            f"{path} has no linear layers named {unknown[0]!r} for lora.target_modules; there are {', '.join(sorted(layers))}"
        )


def linear_layers(path: str) -> set[str]:
    """Return the last names of all layers but the output one that LoRA can adapt. Experts and their router are none."""
    return {
        name.split(".")[-2]
        for name, info in weights(Path(path)).items()
        if name.startswith("model.layers.") and len(info.shape) == 2 and ".experts." not in name and ".gate." not in name
    }


def _size(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
