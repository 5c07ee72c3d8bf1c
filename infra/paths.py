"""Paths as people write them."""

from pathlib import Path

from nbrl.infra.errors import StorageError


def expanded(path: str | Path) -> Path:
    """The path with `~` and `~user` replaced. Raises StorageError if there is no such user."""
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise StorageError(f"{path} names the home of a user who is not known here; write the path out") from error
