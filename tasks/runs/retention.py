"""Chooses the checkpoints that stay on the storage, and deletes the others."""

import json
from collections.abc import Iterable, Mapping, Sequence

from nbrl.infra.errors import DamagedError, MissingError
from nbrl.infra.manifest import MANIFEST, read_manifest
from nbrl.infra.storage import Storage
from nbrl.tasks.layout.checkpoints import ADAPTER, CRITIC, HF, RESULT, STATE, STATES, TOKEN_LOGPROBS
from nbrl.tasks.runs.config import CheckpointSettings
from nbrl.tasks.runs.history import Record
from nbrl.tasks.runs.orders import has_state
from nbrl.tasks.runs.pins import champions, pinned
from nbrl.tasks.runs.run import Run


def kept(made: Sequence[int], scores: Mapping[int, float], settings: CheckpointSettings) -> tuple[set[int], set[int]]:
    """Return those of the checkpoints after `made` updates that stay, and those that stay with their optimiser's state.

    `scores` are the held-out exact matches of those that were evaluated, by updates; of equal ones the newer is better.
    """
    recent = set(made if settings.keep_last is None else sorted(made)[-settings.keep_last :])
    best = sorted((number for number in made if number in scores), key=lambda number: (scores[number], number), reverse=True)
    every = {number for number in made if settings.keep_every and number % settings.keep_every == 0}
    stay = recent | set(best[: settings.keep_best]) | every
    return stay, stay if settings.state == "all" else recent


def prune(
    storage: Storage, run: Run, records: Sequence[Record], scores: Mapping[int, float], settings: CheckpointSettings
) -> None:
    """Delete the checkpoints of `records` that need not stay, and the states of those that stay without.

    Champions stay. If a champion cannot be read, nothing is deleted.
    """
    keys = storage.list(run.layout.checkpoints)
    try:
        folders, stay, trainable = _staying(storage, run, records, keys, scores, settings)
    except DamagedError:
        return
    for number in folders:
        if number not in stay:
            _delete(storage, folders[number])
        elif number not in trainable:
            _drop_state(storage, folders[number], keys)


def dispensable(
    storage: Storage, run: Run, records: Sequence[Record], scores: Mapping[int, float], settings: CheckpointSettings
) -> list[str]:
    """Return the folders of the checkpoints that `prune` would delete."""
    keys = storage.list(run.layout.checkpoints)
    try:
        folders, stay, _ = _staying(storage, run, records, keys, scores, settings)
    except DamagedError:
        return []
    return [folder for number, folder in folders.items() if number not in stay]


def _staying(
    storage: Storage,
    run: Run,
    records: Sequence[Record],
    keys: Sequence[str],
    scores: Mapping[int, float],
    settings: CheckpointSettings,
) -> tuple[dict[int, str], set[int], set[int]]:
    """Return the records' checkpoints by updates, those that stay, and those that keep their states. Raises DamagedError."""
    folders, chosen = _folders(records, keys), champions(storage)
    stay, trainable = kept(list(folders), scores, settings)
    bases = _bases(storage, folders, keys, trainable)
    stay |= bases | pinned(storage, run) | {number for number, folder in folders.items() if folder in chosen}
    return folders, stay, trainable | bases


def _bases(storage: Storage, folders: Mapping[int, str], keys: Sequence[str], trainable: Iterable[int]) -> set[int]:
    """Return those of the checkpoints whose states the trainable ones need: their own, or the last before. Files that the
    manifest does not name are no state: they may be on their way to it.
    """
    stated = [number for number, folder in folders.items() if _has_files(keys, folder) and has_state(storage, folder)]
    return {max(earlier) for number in trainable if (earlier := [each for each in stated if each <= number])}


def _has_files(keys: Sequence[str], folder: str) -> bool:
    return any(key.startswith(tuple(f"{folder}/{name}" for name in STATES)) for key in keys)


def _folders(records: Sequence[Record], keys: Sequence[str]) -> dict[int, str]:
    """Return the folders of the records' checkpoints that are there, by updates."""
    folders = _complete(keys)
    return {each.updates: each.checkpoint for each in records if each.checkpoint in folders}


def complete(storage: Storage, run: Run) -> set[str]:
    """Return the folders of the run's checkpoints that have weights."""
    return _complete(storage.list(run.layout.checkpoints))


def _complete(keys: Sequence[str]) -> set[str]:
    return {"/".join(parts[:4]) for parts in (key.split("/") for key in keys) if parts[4:5] == [HF]}  # a run may be named so too


def delete_late_states(storage: Storage, keys: Sequence[str]) -> None:
    """Delete what these keys hold of checkpoints without weights: a process that was taken over may add a state, and the manifest
    that names it, to a checkpoint that was deleted meanwhile.
    """
    whole = _complete(keys)
    for folder in sorted({"/".join(key.split("/")[:4]) for key in keys if not key.endswith(f"/{RESULT}")} - whole):
        _delete(storage, folder)


def _delete(storage: Storage, checkpoint: str) -> None:
    """Delete a checkpoint but its result, which proves from what it was made.

    The manifest goes first: without, there is none. The weights go last: while there are any, a deletion that was cut off is
    done again.
    """
    storage.delete(f"{checkpoint}/{MANIFEST}")
    for name in (TOKEN_LOGPROBS, STATE, CRITIC, ADAPTER, HF):
        storage.delete(f"{checkpoint}/{name}")


def _drop_state(storage: Storage, checkpoint: str, keys: Sequence[str]) -> None:
    """Delete the states among `keys`. The manifest goes first: a checkpoint is always what it says. One that lost it stays."""
    states = [key for key in keys if key.startswith(tuple(f"{checkpoint}/{name}" for name in STATES))]
    if not states:
        return
    try:
        names = _names(storage, checkpoint)
    except (MissingError, DamagedError):
        return
    left = {name: digest for name, digest in names.items() if not name.startswith(STATES)}
    if left != names:
        storage.write_bytes(f"{checkpoint}/{MANIFEST}", json.dumps(left, indent=1).encode())
    storage.delete_keys(states)


def _names(storage: Storage, checkpoint: str) -> dict[str, str]:
    key = f"{checkpoint}/{MANIFEST}"
    return read_manifest(storage.read_bytes(key), storage.uri(key))
