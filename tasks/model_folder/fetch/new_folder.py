"""A folder that appears only when it is complete."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from nbrl.tasks.errors import ConfigError


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """An empty folder that becomes `target` when the block ends; if the block fails, nothing of it remains.

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
