"""The policy's folder: a local Hugging Face folder, or a model of the hub."""

import json
import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from tasks.errors import ConfigError

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


class PolicySettings(BaseModel):
    """`path` is a Hugging Face folder, or `owner/name` on the hub, at `revision`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str = Field(min_length=1)
    revision: str | None = None


def local_config(settings: PolicySettings) -> dict[str, Any] | None:
    """The model's config.json, or None for a hub model not yet fetched. Raises ConfigError when there is no such model."""
    folder = Path(settings.path)
    if folder.is_dir():
        for name in ("config.json", "tokenizer.json"):
            if not (folder / name).is_file():
                raise ConfigError(f"policy.path {settings.path} has no {name}; it must be a Hugging Face model folder")
        if not list(folder.glob("*.safetensors")):
            raise ConfigError(f"policy.path {settings.path} has no *.safetensors weights; export the model as safetensors")
        return _config(folder / "config.json")
    if _HUB_ID.fullmatch(settings.path):
        return None
    raise ConfigError(f"policy.path {settings.path} does not exist; give a Hugging Face model folder or owner/name of the hub")


def _config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}; fetch or save the model again") from error
    if not isinstance(config, dict) or not isinstance(config.get("vocab_size"), int):
        raise ConfigError(
            f"{path} is no model's configuration: it has no vocab_size; give a model folder of Hugging Face's format"
        )
    return config


def fetch(settings: PolicySettings) -> Path:
    """The model's local folder; a hub model is downloaded first."""
    if Path(settings.path).is_dir():
        return Path(settings.path).resolve()
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(
            snapshot_download(settings.path, revision=settings.revision, allow_patterns=["*.json", "*.safetensors", "*.jinja"])
        )
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"policy.path {settings.path} is no local folder and the hub did not give it: {reason}") from error
