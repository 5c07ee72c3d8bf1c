"""`nbrl export`: the weights of a run as a Hugging Face folder."""

import shlex
import shutil
import tempfile
from pathlib import Path

from nbrl.infra.engine.settings import EngineSettings
from nbrl.infra.manifest import check_folder
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import ConfigError, UpdateError
from nbrl.tasks.layout.checkpoints import ADAPTER, HF
from nbrl.tasks.model_folder.check import check_adapter, check_model
from nbrl.tasks.model_folder.export import Dtype
from nbrl.tasks.model_folder.export import export as write
from nbrl.tasks.runs.checkpoints import used


def export(
    storage: Storage,
    run: str,
    updates: int | None,
    target: Path,
    dtype: Dtype | None = None,
    max_shard_size: str | None = None,
    adapter: bool = False,
) -> str:
    """Write `target` from a run's checkpoint, by default the newest finished one, and return the checkpoint's URI.

    With `adapter`, write what LoRA trained, in peft's format, instead of the complete model.
    `target` appears only when it is complete. Raises ConfigError if it is not empty or cannot be written.
    """
    if target.is_symlink() or (target.exists() and (not target.is_dir() or any(target.iterdir()))):
        raise ConfigError(f"{target} exists; name a folder that does not, nothing is overwritten")
    if adapter and (dtype or max_shard_size):
        raise ConfigError("--adapter is written as it is; leave --dtype and --max-shard-size out")
    below = ADAPTER if adapter else HF
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with (
            used(storage, run, updates) as path,
            tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as beside,
        ):
            source = storage.local_path(path) or storage.download_folder(path, Path(beside) / "checkpoint", below)
            _check(source, below, storage.uri(path))
            check_folder(source, f"{below}/")
            complete = Path(beside) / "made"
            complete.mkdir()
            write(source / below, complete, dtype, max_shard_size)
            complete.rename(target)
    except (OSError, shutil.Error) as error:
        raise ConfigError(f"{target} could not be made: {error}") from error
    return storage.uri(path)


def _check(checkpoint: Path, below: str, name: str) -> None:
    """Raises ConfigError unless the checkpoint has a complete `below` (model or adapter) to export."""
    if below == ADAPTER and checkpoint.is_dir() and not (checkpoint / ADAPTER).is_dir():
        raise ConfigError(f"{name} has no adapter: the run was trained without update.lora")
    try:
        if below == HF:
            check_model(str(checkpoint / HF))
        else:
            check_adapter(checkpoint / ADAPTER)
    except UpdateError as error:
        raise ConfigError(f"the checkpoint is incomplete; choose another with --checkpoint N: {error}") from error


def closing(target: Path, source: str, adapter: bool) -> str:
    """Return the message with what was written and the next commands, which must not be wrapped."""
    folder = shlex.quote(str(target))
    if adapter:
        return (
            f"wrote the adapter of {source} to {target}\n"
            f'in Python   peft.PeftModel.from_pretrained(model, "{target}")    (model: the one that the run began from)'
        )
    return (
        f"wrote the policy of {source} to {target}\n"
        f'in Python   transformers.AutoModelForCausalLM.from_pretrained("{target}")\n'
        f"train it    nbrl train RECIPE --set policy.path={folder}\n"
        f"serve it    {EngineSettings().python} -m sglang.launch_server --model-path {folder}    (with a GPU)"
    )
