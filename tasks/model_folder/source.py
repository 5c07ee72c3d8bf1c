"""The policy's folder: a local Hugging Face folder, or a model of the hub."""

import hashlib
import os
import re
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from nbrl.infra.closed import FREE, ClosedModel
from nbrl.infra.manifest import file_sha256
from nbrl.infra.paths import content
from nbrl.tasks.errors import ConfigError, fault_in_words

HUB_S = 10.0  # to wait for the hub's word on a model
PATTERNS = ("*.json", "*.safetensors", "*.jinja")  # of a model's files, all that are needed
BESIDE = ("*.txt", "*.model", "*.md", "LICENSE*", "NOTICE*")  # files beside them, such as merges and a licence
_HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")


class PolicySettings(ClosedModel):
    """`path` is a Hugging Face folder, or `owner/name` on the hub, at `revision`."""

    path: str = Field(
        min_length=1,
        description="a folder in Hugging Face format, or owner/name on the hub; ./name is relative to the recipe's folder first",
        json_schema_extra=FREE,
    )
    revision: str | None = Field(
        None, description="branch, tag or commit on the hub; the main branch when not set", json_schema_extra=FREE
    )


class _Config(BaseModel):
    """The fields of config.json with which the run's own limits are compared, for any model."""

    model_config = ConfigDict(strict=True, extra="ignore")

    vocab_size: int
    max_position_embeddings: int | None = None


def is_hub_name(path: str) -> bool:
    """Return whether it may be `owner/name` of a model of the hub; what begins with `./`, `../`, `/` or `~` is a folder."""
    return _HUB_NAME.fullmatch(path) is not None


def local_config(settings: PolicySettings) -> dict[str, int] | None:
    """Return `vocab_size` and, where it is given, `max_position_embeddings` of the model's config.json; None for a hub model not
    yet fetched. Raises ConfigError when there is no such model.
    """
    folder = Path(settings.path)
    if folder.is_dir():
        if fault := lacks(folder):
            raise ConfigError(f"policy.path {settings.path} {fault}")
        return _config(folder / "config.json")
    if is_hub_name(settings.path):
        return None
    raise ConfigError(
        f"policy.path {settings.path} does not exist; give a Hugging Face model folder or owner/name of the hub, "
        f"or make this one with `nbrl warmstart {settings.path}`, whose further words for each recipe are in docs/warmstart.md"
    )


def lacks(folder: Path) -> str:
    """Return which files of a model a folder lacks, and what to do; empty if it has all that are needed."""
    for name in ("config.json", "tokenizer.json"):
        if not (folder / name).is_file():
            return f"has no {name}; it must be a Hugging Face model folder"
    return "" if list(folder.glob("*.safetensors")) else "has no *.safetensors weights; export the model as safetensors"


def _config(path: Path) -> dict[str, int]:
    try:
        return _Config.model_validate_json(content(path)).model_dump(exclude_none=True)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error}; fetch or save the model again") from error
    except ValidationError as error:
        raise ConfigError(
            f"{path} is no model's configuration: {fault_in_words(error)}; give a model folder of Hugging Face's format"
        ) from error


def check_hub(settings: PolicySettings) -> str:
    """Return why the existence of a hub model is unknown; empty if it exists, was fetched before, or is a local folder.

    Raises ConfigError when the hub does not give it.
    """
    if os.path.isdir(settings.path):
        return ""
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        snapshot_download(settings.path, revision=settings.revision, local_files_only=True)
        return ""
    except HFValidationError as error:
        raise ConfigError(f"{_not_given(settings)}: {_in_words(error)}") from error
    except LocalEntryNotFoundError:
        pass
    try:
        HfApi().model_info(settings.path, revision=settings.revision, timeout=HUB_S)
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise ConfigError(f"{_not_given(settings)}: {_in_words(error)}") from error
    except Exception as error:  # its client raises what its own libraries raise where there is no network
        return (
            f"policy.path {settings.path}: the hub did not answer ({type(error).__name__}), and no copy is here; "
            "`nbrl model fetch smollm2-135m` brings a small model without the hub"
        )
    return ""


def fetch(settings: PolicySettings) -> Path:
    """Return the model's local folder; a hub model is downloaded first."""
    if os.path.isdir(settings.path):
        return Path(settings.path).resolve()
    return snapshot(settings, _not_given(settings))


def snapshot(settings: PolicySettings, otherwise: str) -> Path:
    """Return a copy of a hub model. Raises ConfigError that begins with `otherwise` if there is none."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(settings.path, revision=settings.revision, allow_patterns=list(PATTERNS)))
    except LocalEntryNotFoundError as error:
        raise ConfigError(f"{otherwise}: no copy is here, and it does not answer ({str(error).splitlines()[0]})") from error
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise ConfigError(f"{otherwise}: {_in_words(error)}") from error


def files_of(folder: Path) -> list[Path]:
    """Return the files of a model folder that make the model, sorted."""
    return sorted(path for pattern in PATTERNS for path in folder.glob(pattern))


def copied_with_weights(folder: Path) -> list[Path]:
    """Return the files of a model folder that a checkpoint and an export take along, sorted.

    A link that leads out of the folder, and not into the hub's cache, is left out: it may name any file of this machine.
    """
    inside = [os.path.realpath(folder), os.path.realpath(folder / "../../blobs")]
    paths = {path for pattern in (*PATTERNS, *BESIDE) for path in folder.glob(pattern) if path.is_file()}
    return sorted(path for path in paths if os.path.dirname(os.path.realpath(path)) in inside)


def content_digest(folder: Path) -> str:
    """Return the SHA-256 over names and contents of a model folder's files. Raises ConfigError if one cannot be read."""
    sha = hashlib.sha256()
    try:
        for path in files_of(folder):
            sha.update(f"{path.name} {file_sha256(path)}\n".encode())
    except OSError as error:
        raise ConfigError(f"the model folder {folder} cannot be read: {error}") from error
    return sha.hexdigest()


def _not_given(settings: PolicySettings) -> str:
    return f"policy.path {settings.path} is no local folder and the hub does not give it"


def _in_words(error: Exception) -> str:
    return " ".join(str(error).split())
