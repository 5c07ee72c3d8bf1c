"""Puts finished work aside, so that it is done again: results and records. What they name goes when it was done again."""

from contextlib import suppress

from pydantic import ValidationError

from nbrl.infra.errors import DamagedError, MissingError
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.runs.history import Record, finished_iterations, read_record, records_among
from nbrl.tasks.runs.lease import Writer
from nbrl.tasks.runs.retention import can_train_on
from nbrl.tasks.runs.run import Run

NODES = ("sample", "rollout", "reward", "select", "advantage", "update", "record")


def parse(text: str) -> tuple[int, str]:
    """`ITERATION[:NODE]`, the iteration as it is displayed, from 1; the node is empty for all of them. Raises ConfigError."""
    number, separator, node = text.partition(":")
    if not number.isdecimal() or int(number) < 1 or (separator and node not in NODES):
        raise ConfigError(
            f"--redo {text!r} is not ITERATION or ITERATION:NODE; nodes are {', '.join(NODES)}, iterations count from 1"
        )
    return int(number), node


def put_aside(storage: Storage, writer: Writer, number: int, node: str) -> None:
    """Put the results of one node of an iteration aside, or of all, and the records of this and all later iterations.

    Nodes whose inputs come out the same are then found again. A damaged or lost record is only brought back from its copy, where
    there is one. Raises ConfigError if the iteration never began, or if the checkpoint that it starts from is gone.
    """
    if node == "record" and _brought_back(storage, writer.run, number - 1):
        return
    layout, first = writer.run.layout, number - 1
    keys = storage.list(layout.iterations)
    finished, stage = finished_iterations(keys, layout), layout.iteration(first)
    records = [key for key in records_among(keys, layout) if key >= stage.record]
    if first > finished or not (records or any(key.startswith(f"{stage.folder}/") for key in keys)):
        raise ConfigError(f"run {layout.name!r} has no iteration {number} to do again; it has finished {finished}")
    _check_start(storage, writer, number)
    results = [] if node == "record" else [key for key in keys if key.startswith(f"{stage.results}/{node}")]
    storage.delete_keys(layout.iteration(later).record_copy for later in range(first, finished + 1))
    # The last record goes first, so that a kill leaves a run that is shorter, but has no record after a gap.
    for key in [*filter(storage.exists, [layout.summary]), *reversed(records), *results]:
        storage.write_bytes(layout.redone(key, writer.epoch), storage.read_bytes(key))
        storage.delete(key)
    for later in range(first, finished + 1):
        storage.delete_keys([key for key in keys if layout.iteration(later).is_unfinished(key)])


def _brought_back(storage: Storage, run: Run, iteration: int) -> bool:
    """Replace a record that is damaged or gone by its copy; returns whether this was necessary and possible."""
    with suppress(DamagedError):
        if read_record(storage, run, iteration) is not None:
            return False
    stage = run.layout.iteration(iteration)
    try:
        copy = Record.model_validate(storage.read_json(stage.record_copy))
    except (MissingError, DamagedError, ValidationError):
        return False
    if copy.run_id != run.run_id or copy.iteration != iteration:
        return False
    storage.write_json(stage.record, copy.model_dump(mode="json"))
    return True


def _check_start(storage: Storage, writer: Writer, number: int) -> None:
    """Raises ConfigError unless the checkpoint that the iteration starts from can be trained on."""
    before = read_record(storage, writer.run, number - 2) if number > 1 else None
    if before is not None and before.checkpoint and not can_train_on(storage, before.checkpoint):
        raise ConfigError(
            f"iteration {number} cannot be done again: the checkpoint after {before.updates} updates, which it starts from, was "
            "deleted or kept without its optimiser state; `checkpoints.keep_last` says how many stay"
        )
