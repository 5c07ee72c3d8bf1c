"""A LoRA adapter straight into an engine, from the process that has it."""

import base64
import pickle
from pathlib import Path

import httpx
from safetensors.torch import load_file

from nbrl.infra.engine.client import adapter_name
from nbrl.infra.engine.keys import headers
from nbrl.infra.errors import EngineError, shortened
from nbrl.infra.parse import json_value


def send_adapter(folder: Path, version: str, url: str, key: str, limit_s: float) -> None:
    """Load peft's adapter in a folder, of the weights `version`, into the engine at `url`, which must not have it.

    Raises EngineError if the engine does not take it within `limit_s` seconds.
    """
    body = {
        "lora_name": adapter_name(version),
        "config_dict": json_value((folder / "adapter_config.json").read_text()),
        "serialized_tensors": base64.b64encode(pickle.dumps(load_file(folder / "adapter_model.safetensors"))).decode(),
    }
    try:
        where = f"{url}/load_lora_adapter_from_tensors"
        answer = httpx.post(where, json=body, headers=headers(key), timeout=limit_s, trust_env=False)
    except httpx.HTTPError as error:
        raise EngineError(f"the engine at {url} did not take an adapter: {shortened(error) or type(error).__name__}") from error
    if answer.status_code != 200:
        raise EngineError(f"the engine at {url} answered an adapter with {answer.status_code}: {answer.text[:300].strip()}")
