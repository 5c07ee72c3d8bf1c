"""Puts finished work aside, so that it is done again: results and records. What they name goes when it was done again."""

from collections.abc import Callable, Sequence
from contextlib import suppress

from nbrl.infra.errors import DamagedError, MissingError
from nbrl.infra.manifest import MANIFEST
from nbrl.infra.storage import Storage
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.layout.runs import RunLayout
from nbrl.tasks.layout.stages import MERGED, StageLayout, is_chunk, of_node
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.history import Record, finished_iterations, read_record, records_among
from nbrl.tasks.runs.kept import read_kept
from nbrl.tasks.runs.orders import can_train_on
from nbrl.tasks.runs.results import NodeResult, evaluated_updates, keyed_results, unmerge
from nbrl.tasks.runs.run import Run
from nbrl.tasks.runs.writer import Writer

SAMPLING = (
    "",
    "sample",
    "admit",
    "rollout",
    "branch",
    "reward",
    "select",
    "retire",
    "rate",
    "refill",
)  # and what may ask for another round
NODES = (
    *("sample", "admit", "rollout", "branch", "reward", "select", "retire", "rate", "refill", "advantage", "teach", "update"),
    "record",
)


def parse(text: str) -> tuple[int, str]:
    """Return `ITERATION[:NODE]`, the iteration as it is displayed, from 1; an empty node means all. Raises ConfigError."""
    number, separator, node = text.partition(":")
    if not number.isdecimal() or int(number) < 1 or (separator and node not in NODES):
        raise ConfigError(
            f"--redo {text!r} is not ITERATION or ITERATION:NODE; nodes are {', '.join(NODES)}, iterations count from 1"
        )
    return int(number), node


def put_aside(
    storage: Storage,
    config: RunConfig,
    writer: Writer,
    number: int,
    node: str,
    say: Callable[[str], None] = lambda text: None,
) -> None:
    """Put the results of one node of an iteration aside, or of all, the updates after it, and the records of this and all later
    iterations.

    Nodes whose inputs come out the same are then found again; updates are not, for each names the very one before it. A record
    that is damaged or lost is only brought back from its copy, where there is one, and one that is whole stays. The same request
    is carried out once until the run has finished, so that a command may be repeated after it was killed; `say` reports what is
    not put aside.

    Raises ConfigError if the iteration never began, or if a checkpoint is gone from which it starts, or from which its rollouts
    or those after it are sampled: with a lag, that of an iteration before it.
    """
    layout, first, request = writer.run.layout, number - 1, f"{number}:{node}"
    if node == "record" and (what := _mended(storage, writer.run, first)):
        say(f"nbrl: the record of iteration {number} {what}; nothing is done again")
        return
    if not storage.exists(layout.summary) and _requested(storage, layout) == request:
        say(
            f"nbrl: an earlier start put iteration {number} aside; the run goes on from there (to put it aside once more before "
            "the run has finished, name another node)"
        )
        return
    keys = storage.list(layout.iterations)
    finished, stage = finished_iterations(keys, layout), layout.iteration(first)
    records = [key for key in records_among(keys, layout) if key >= stage.record]
    if first > finished or not (records or any(key.startswith(f"{stage.folder}/") for key in keys)):
        raise ConfigError(f"run {layout.name!r} has no iteration {number} to do again; it has finished {finished}")
    _check_start(storage, config, writer, number)
    if (lag := config.pipeline.lag) and not config.pipeline.stream and node != "record":
        for later_one in range(number if node in SAMPLING else number + 1, min(number + lag, config.iterations) + 1):
            _check_sampler(storage, writer, number, later_one, lag)
    for folder in sorted({key.rpartition("/")[0] for key in keys if key >= f"{stage.folder}/" and key.endswith(f"/{MERGED}")}):
        unmerge(storage, StageLayout(folder, writer.epoch))
    keys = storage.list(layout.iterations)
    later = [key for key in keys if key >= f"{stage.folder}/"]
    results = [] if node == "record" else [key for key in later if key.startswith(f"{stage.results}/{node}") or _is_update(key)]
    copies = [key for key in later if key.rpartition("/")[2] == stage.record_copy.rpartition("/")[2]]
    storage.delete_keys([layout.redo, *copies])  # an earlier request is not this one, should this one be cut off
    # The last record goes first, so that a kill leaves a run that is shorter, but has no record after a gap; and so does the last
    # update, lest one is found again that names an update which is made anew.
    for key in [*filter(storage.exists, [layout.summary]), *reversed(records), *reversed(results)]:
        storage.write_bytes(layout.redone(key, writer.epoch), storage.read_bytes(key))
        storage.delete(key)
    kept = {
        part for key in later if of_node(key) and "/redone-" not in key and key not in results for part in _parts(storage, key)
    }
    storage.delete_keys(key for key in later if is_chunk(key) and key not in kept)
    storage.delete_keys(storage.list(layout.stream().folder))  # of weights that are made again
    storage.write_json(layout.redo, {"request": request})


def drop_obsolete_evaluations(storage: Storage, writer: Writer, records: Sequence[Record]) -> None:
    """Delete the evaluations of policies that a run which did work again no longer has."""
    layout = writer.run.layout
    if not storage.exists(layout.redo):
        return
    policies = {writer.run.policy, *(record.policy.digest for record in records)}
    for updates in evaluated_updates(storage, writer.run):
        stage = layout.evaluation(updates)
        for key, result in keyed_results(storage, stage):
            if result.inputs[0] not in policies:
                storage.delete_keys([result.artifact.path, *result.artifact.parts, key])


def _is_update(key: str) -> bool:
    return of_node(key) and key.rpartition("/")[2].startswith("update-")


def _parts(storage: Storage, key: str) -> list[str]:
    """Return what a node's result names besides its own object; none where the result is damaged, and the node is done again."""
    try:
        return list(read_kept(storage, key, NodeResult).artifact.parts)
    except DamagedError:
        return []


def _requested(storage: Storage, layout: RunLayout) -> str:
    """Return what was put aside last; empty if nothing ever was."""
    try:
        return str(storage.read_json(layout.redo)["request"])
    except (MissingError, DamagedError, KeyError):
        return ""


def _mended(storage: Storage, run: Run, iteration: int) -> str:
    """Replace a record that is damaged or gone by its copy, where that names what is there; return a sentence about the result.
    Empty if the record is neither whole nor can be brought back.
    """
    with suppress(DamagedError):
        if read_record(storage, run, iteration) is not None:
            return "is whole"
    stage = run.layout.iteration(iteration)
    try:
        copy = read_kept(storage, stage.record_copy, Record)
    except (MissingError, DamagedError):
        return ""
    named = [key for artifact in copy.artifacts for key in (artifact.path, *artifact.parts)]
    tables = [key for key in named if key.startswith(f"{stage.folder}/")]
    if copy.run_id != run.run_id or copy.iteration != iteration or not all(map(storage.exists, tables)):
        return ""
    storage.write_json(stage.record, copy.model_dump(mode="json"))
    return "was brought back from its copy"


def _check_start(storage: Storage, config: RunConfig, writer: Writer, number: int) -> None:
    """Raises ConfigError unless the checkpoint that the iteration starts from can be trained on."""
    before = read_record(storage, writer.run, number - 2) if number > 1 else None
    if before is not None and before.checkpoint and not can_train_on(storage, config, writer.run, before.policy):
        raise ConfigError(
            f"iteration {number} cannot be done again: the checkpoint after {before.updates} updates, which it starts from, was "
            "deleted, or what is needed to make its optimiser state again; `checkpoints.keep_last` says how many stay"
        )


def _check_sampler(storage: Storage, writer: Writer, number: int, sampled: int, lag: int) -> None:
    """Raises ConfigError unless the weights are there that sample the batch of an iteration, `number` or one after it."""
    first = sampled - 1 - lag
    before = read_record(storage, writer.run, first - 1) if first > 0 else None
    if before is not None and before.checkpoint and not storage.exists(f"{before.checkpoint}/{MANIFEST}"):
        raise ConfigError(
            f"iteration {number} cannot be done again: the checkpoint after {before.updates} updates, from which the rollouts of "
            f"iteration {sampled} are sampled, was deleted; `checkpoints.keep_last` says how many stay"
        )
