"""The model that a warm start begins from."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nbrl.infra.storage import Storage
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.evaluation.subject import run_of, subject_of_run
from nbrl.tasks.model_folder.source import PolicySettings, check_hub, content_digest, fetch, is_hub_name, lacks
from nbrl.tasks.runs.checkpoints import checkpoint_folder


def start_digest(start: str, storage: Storage) -> str:
    """What identifies the model. Raises ConfigError if there is none of this name."""
    if (run := run_of(storage, start)) is not None:
        return subject_of_run(storage, *run).digest
    return content_digest(fetch(_policy(start)))


@contextmanager
def start_folder(start: str, storage: Storage, home: Path) -> Iterator[Path]:
    """Its Hugging Face folder; while the body runs, nothing deletes it."""
    if (run := run_of(storage, start)) is not None:
        with checkpoint_folder(storage, home, *run) as folder:
            yield folder
    else:
        yield fetch(_policy(start))


def _policy(start: str) -> PolicySettings:
    folder = Path(start).expanduser()
    if folder.is_dir():
        if fault := lacks(folder):
            raise ConfigError(f"{start} {fault}")
        return PolicySettings(path=str(folder))
    if is_hub_name(start):
        settings = PolicySettings(path=start)
        if doubt := check_hub(settings):
            why = doubt.removeprefix("policy.path ")
            raise ConfigError(f"{why}; give a folder instead, or `nbrl model fetch {start}` where the hub can be reached")
        return settings
    raise ConfigError(
        f"there is no model {start!r}: give a Hugging Face folder, owner/name on the hub, or RUN or RUN@N of the root"
    )
