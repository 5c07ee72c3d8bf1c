"""The teacher of a loss that has one: its folder, and what it must have in common with the policy."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nbrl.infra.errors import InfraError
from nbrl.infra.parse import json_value
from nbrl.infra.paths import content
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.model_folder.source import PolicySettings, content_digest, fetch, lacks, local_config
from nbrl.tasks.runs.checkpoints import folder_of, run_of
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.history import newest_record
from nbrl.tasks.runs.run import known_run


@contextmanager
def teacher_folder(config: RunConfig, storage: Storage) -> Iterator[Path | None]:
    """Yield the local folder of the teacher, which nothing deletes while the body runs; None if there is none, or it is served.

    Raises ConfigError if there is no such folder, run or checkpoint.
    """
    loss = config.update.teacher
    if loss is None or loss.served:
        yield None
        return
    try:
        _check_named(storage, loss.teacher)
        with folder_of(storage, Path(config.home), loss.teacher) as folder:
            yield folder
    except (ConfigError, InfraError) as error:
        raise ConfigError(f"update.loss.teacher: {error}") from error


def _check_named(storage: Storage, teacher: str) -> None:
    """Raises ConfigError for a run without a checkpoint's number: it goes on, and would be another teacher then."""
    named = run_of(storage, teacher)
    if named is not None and named[1] is None:
        newest = newest_record(storage, known_run(storage, named[0]))
        raise ConfigError(f"{teacher} is a run; name one of its checkpoints, such as {teacher}@{newest.updates if newest else 0}")


def teacher_digest(config: RunConfig, storage: Storage) -> str:
    """Return the digest of the teacher's files; empty if there is none, or it is served."""
    with teacher_folder(config, storage) as folder:
        return "" if folder is None else content_digest(folder)


def check_teacher(config: RunConfig, storage: Storage) -> None:
    """Raises ConfigError if the teacher is not there, has other tokens than the policy, or takes fewer of them."""
    with teacher_folder(config, storage) as folder:
        if folder is None:
            return
        named = f"update.loss.teacher {config.update.teacher and config.update.teacher.teacher}"
        if fault := lacks(folder):
            raise ConfigError(f"{named} {fault}")
        longest = (local_config(PolicySettings(path=str(folder))) or {}).get("max_position_embeddings")
        if longest is not None and longest < config.agent.context_tokens:
            raise ConfigError(
                f"{named} takes {longest} tokens, and agent.context_tokens is {config.agent.context_tokens}; lower that, or take "
                "another teacher"
            )
        mine = fetch(config.policy)
        if _tokens(mine) != _tokens(folder):
            raise ConfigError(
                f"{named} has other tokens than policy.path {config.policy.path}, so that it cannot score them; take a teacher "
                "with the same tokenizer"
            )


def _tokens(folder: Path) -> object:
    """Return what gives texts their token ids."""
    try:
        tokenizer = json_value(content(folder / "tokenizer.json").decode())
        added = sorted((each["id"], each["content"]) for each in tokenizer.get("added_tokens") or [])
        return tokenizer.get("model"), tokenizer.get("pre_tokenizer"), tokenizer.get("normalizer"), added
    except (OSError, ValueError, TypeError, AttributeError, LookupError) as error:
        raise ConfigError(f"{folder / 'tokenizer.json'} is no tokenizer: {type(error).__name__}: {error}") from error
