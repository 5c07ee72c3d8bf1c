"""The model that an evaluation evaluates."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nbrl.infra.storage import Storage
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.evaluation.summary import Subject
from nbrl.tasks.model_folder.source import content_digest, fetch
from nbrl.tasks.runs.checkpoints import checkpoint, checkpoint_folder
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.history import made_in, newest_record, read_record
from nbrl.tasks.runs.run import known_run


def subject_of_run(storage: Storage, run: str, updates: int | None) -> Subject:
    """Return the policy of a run after `updates` updates, the newest by default; 0 is the model that it began with.

    Raises ConfigError if its checkpoint is not there.
    """
    of_run = known_run(storage, run)
    newest = newest_record(storage, of_run)
    if updates == 0 or (updates is None and (newest is None or not newest.checkpoint)):
        return Subject(name=f"{run}@0", digest=of_run.policy, run=run, run_id=of_run.run_id)
    checkpoint(storage, run, updates)
    record = newest if updates is None else read_record(storage, of_run, made_in(storage, of_run, updates))
    if record is None:
        raise ConfigError(f"run {run!r} has no record of update {updates}")
    policy = record.policy
    return Subject(name=f"{run}@{policy.updates}", digest=policy.digest, run=run, run_id=of_run.run_id, updates=policy.updates)


def subject_of_policy(config: RunConfig) -> Subject:
    """Return the model of `policy.path`."""
    return Subject(name=config.policy.path, digest=content_digest(fetch(config.policy)))


def check_began_with(config: RunConfig, subject: Subject) -> None:
    """Raises ConfigError if `policy.path` holds another model than the one with which the subject's run began."""
    if subject.run and not subject.updates and subject.digest != content_digest(fetch(config.policy)):
        raise ConfigError(
            f"policy.path {config.policy.path} holds another model than run {subject.run!r} began with; name the folder of that "
            "one by --set policy.path=FOLDER, or a checkpoint by RUN@UPDATES"
        )


@contextmanager
def model_folder(config: RunConfig, subject: Subject) -> Iterator[Path]:
    """Yield the local Hugging Face folder of the subject; while the body runs, nothing deletes it. Not for a server."""
    if subject.server:
        yield Path(config.policy.path)
    elif subject.updates:
        with checkpoint_folder(Storage(config.storage), Path(config.home), subject.run, subject.updates) as folder:
            yield folder
    else:
        yield Path(fetch(config.policy))
