"""export: the weights of a checkpoint as a complete Hugging Face folder."""

import json
import re
import shutil
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

from nbrl.agent.errors import TokenizerError
from nbrl.agent.tokens.tokenizer import ChatTokenizer
from nbrl.infra.parse import json_value
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.model_folder.config_json import name_dtype
from nbrl.tasks.model_folder.source import copied_with_weights

Dtype = Literal["float32", "bfloat16", "float16"]
INDEX = "model.safetensors.index.json"
SIZE = re.compile(r"(?!0+[KMGT])\d{1,9}[KMGT]B")


def export(source: Path, target: Path, dtype: Dtype | None, max_shard_size: str | None) -> None:
    """Fill the empty folder `target` with the Hugging Face folder `source`.

    Files are copied as they are, but generation_config.json names the end of a turn too, and weights are written anew where
    `dtype` converts them or `max_shard_size` ("5GB") cuts them into other files. Raises ConfigError when that cannot be done.
    """
    again = dtype is not None or max_shard_size is not None
    for entry in copied_with_weights(source):
        weights = entry.name.endswith((".safetensors", ".safetensors.index.json"))
        if not (again and weights):
            shutil.copyfile(entry, target / entry.name)
    if again:
        from safetensors import SafetensorError

        try:
            _write(source, target, dtype, max_shard_size or "5GB")
        except SafetensorError as error:  # of a full disk, too
            raise ConfigError(f"the weights could not be written anew: {error}") from error
    if dtype is not None:
        name_dtype(target, dtype)
    _end_turns(target)


def _end_turns(folder: Path) -> None:
    """Let generate() end where the policy was trained to: a base model's configuration names the end of texts alone."""
    file = folder / "generation_config.json"
    try:
        settings, end = json_value(file.read_text(encoding="utf-8")), ChatTokenizer.load(folder).end_id
    except (OSError, ValueError, TokenizerError):  # it has none, or is no model that the agent acts with
        return
    named = settings.get("eos_token_id") if isinstance(settings, dict) else end
    ends = named if isinstance(named, list) else [] if named is None else [named]
    if isinstance(settings, dict) and end not in ends:
        file.write_text(json.dumps(settings | {"eos_token_id": [*ends, end]}, indent=2) + "\n", encoding="utf-8")


def _write(source: Path, target: Path, dtype: Dtype | None, max_shard_size: str) -> None:
    """Write the weights, with one file's tensors in memory at a time."""
    import torch
    from huggingface_hub import split_torch_state_dict_into_shards
    from safetensors import safe_open
    from safetensors.torch import save_file

    torch_dtype = (
        None if dtype is None else {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[dtype]
    )
    with ExitStack() as stack:
        files: dict[str, Any] = {}
        for path in sorted(source.glob("*.safetensors")):
            opened = stack.enter_context(safe_open(path, "pt"))
            files |= dict.fromkeys(opened.keys(), opened)
        sizes = {name: torch.empty_like(file.get_tensor(name), dtype=torch_dtype, device="meta") for name, file in files.items()}
        if not SIZE.fullmatch(max_shard_size):
            raise ConfigError(f"--max-shard-size {max_shard_size!r} is no size; write one like 5GB or 500MB")
        split = split_torch_state_dict_into_shards(sizes, max_shard_size=max_shard_size)
        for file_name, names in split.filename_to_tensors.items():
            tensors = {name: _converted(name, files[name].get_tensor(name), torch_dtype) for name in names}
            save_file(tensors, target / file_name, metadata={"format": "pt"})
        if split.is_sharded:
            index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
            (target / INDEX).write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")


def _converted(name: str, tensor: Any, dtype: Any) -> Any:
    converted = tensor if dtype is None else tensor.to(dtype)
    if not converted.isfinite().all() and tensor.isfinite().all():
        raise ConfigError(f"{name} has values that --dtype float16 cannot hold; use bfloat16")
    return converted
