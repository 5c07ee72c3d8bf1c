"""The local state folder, in which servers keep their databases, logs and locks."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nbrl.infra.errors import InfraError

HOME = ".nbrl"


def storage_of(home: str) -> str:
    """Return the storage root of a home, for where no other is named."""
    return os.path.join(home, "storage")


ROOT = storage_of(HOME)


class Home:
    """The folder for everything that this machine keeps between runs; `.nbrl` by default. Subfolders are created on first use."""

    def __init__(self, root: Path | str = HOME) -> None:
        self.root = Path(root).absolute()

    def _folder(self, name: str) -> Path:
        path = self.root / name
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InfraError(
                f"cannot make {path}: {error.strerror}; choose another home folder or fix its permissions"
            ) from error
        return path

    @property
    def prefect(self) -> Path:
        return self._folder("prefect")

    @property
    def mlflow(self) -> Path:
        return self._folder("mlflow")

    @property
    def logs(self) -> Path:
        return self._folder("logs")

    @property
    def locks(self) -> Path:
        return self._folder("locks")

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Hold an exclusive lock `name` among all processes that use this home; the kernel releases it if the holder dies."""
        with (self.locks / name).open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(str(os.getpid()))
            file.flush()
            yield
