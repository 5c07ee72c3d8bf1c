"""A GGUF file as a Hugging Face folder."""

import json
from pathlib import Path
from typing import Any, Literal

from nbrl.tasks.errors import ConfigError
from nbrl.tasks.model_folder.fetch.gguf_file import GgufFile
from nbrl.tasks.model_folder.fetch.llama import configuration, generation, weights
from nbrl.tasks.model_folder.fetch.tokenizer import tokenizer, tokenizer_config
from nbrl.tasks.model_folder.safetensors_files import SINGLE

Dtype = Literal["float32", "bfloat16"]


def write(gguf: Path, folder: Path, dtype: Dtype) -> None:
    """Fill the empty folder. Raises ConfigError if the file cannot be converted or the weights cannot be written."""
    import torch
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    file = GgufFile(gguf)
    _write_json(folder / "config.json", configuration(file, dtype))
    _write_json(folder / "generation_config.json", generation(file))
    _write_json(folder / "tokenizer_config.json", tokenizer_config(file))
    (folder / "tokenizer.json").write_text(tokenizer(file).to_str(pretty=True), encoding="utf-8")
    torch_dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[dtype]
    tensors = {name: torch.tensor(tensor, dtype=torch_dtype) for name, tensor in weights(file)}
    try:
        save_file(tensors, folder / SINGLE, metadata={"format": "pt"})
    except SafetensorError as error:  # of a full disk, too
        raise ConfigError(f"the weights could not be written: {error}; nothing was written") from error
    # Its library keeps the file to its owner.
    (folder / SINGLE).chmod((folder / "config.json").stat().st_mode & 0o777)


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
