"""A GGUF file as a Hugging Face folder, by transformers.

It does not always refuse a file that it reads in another way than llama.cpp: a model is in the catalogue once tests have compared
it.
"""

import importlib.util
from pathlib import Path
from typing import Any, Literal

from nbrl.tasks.errors import ConfigError

Dtype = Literal["float32", "bfloat16"]
EXTRAS = {"gguf": "gguf", "torch": "train", "transformers": "train"}  # of the packages that a conversion needs
MODE = 0o644
REREAD = ("rms_norm_eps", "layer_norm_eps", "rope_theta")  # numbers of 32 bits in the file, which were written as decimal ones


def check_packages() -> None:
    """Raises ConfigError unless all that a conversion needs is installed."""
    for package, extra in EXTRAS.items():
        if importlib.util.find_spec(package) is None:
            raise ConfigError(f"models in GGUF need the package {package}: pip install 'nbrl[{extra}]'")


def convert(gguf: Path, folder: Path, dtype: Dtype) -> None:
    """Fill the empty folder. Raises ConfigError if the file cannot be converted or the weights cannot be written."""
    import torch
    import transformers
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer

    transformers.utils.logging.disable_progress_bar()
    where: dict[str, Any] = {"gguf_file": gguf.name, "local_files_only": True}
    try:
        read: Any = AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=torch.float32, output_loading_info=True, **where)
        tokenizer: Any = AutoTokenizer.from_pretrained(gguf.parent, **where)
    except OSError:
        raise
    except Exception as error:  # what is no GGUF, or one of an architecture that it does not know, can raise anything
        raise ConfigError(f"{gguf} cannot be converted: {type(error).__name__}: {error}; fetch it again") from error
    model, loading = read
    if strange := sorted({*loading["missing_keys"], *loading["unexpected_keys"]} - {"lm_head.weight"}):
        raise ConfigError(f"{gguf} cannot be converted: {strange[0]} is not where transformers has it; fetch it again")
    model.hf_quantizer = None  # what was quantised is not any more
    del model.config.quantization_config
    tokenizer.model_max_length = model.config.max_position_embeddings
    for name in REREAD:
        if isinstance(value := getattr(model.config, name, None), float):
            setattr(model.config, name, _decimal(value))
    rope = getattr(model.config, "rope_parameters", None) or {}
    rope.update({name: _decimal(value) for name, value in rope.items() if isinstance(value, float)})
    try:
        model.to({"float32": torch.float32, "bfloat16": torch.bfloat16}[dtype]).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    except SafetensorError as error:  # of a full disk, too
        raise ConfigError(f"the weights could not be written: {error}; nothing was written") from error
    for file in folder.iterdir():  # some of them belong to their owner alone
        file.chmod(MODE)


def _decimal(value: float) -> float:
    """Return a number of 32 bits as the decimal number that it was written from: 1e-05, not 9.999999747378752e-06."""
    import numpy as np

    return float(str(np.float32(value)))
