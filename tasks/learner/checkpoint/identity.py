"""What identifies orders and checkpoints, and which updates make a state that a checkpoint lacks."""

import hashlib
import io
import json
from typing import NamedTuple

import pyarrow as pa
from pydantic import ValidationError

from nbrl.infra.errors import DamagedError, MissingError
from nbrl.infra.storage import Storage, sha256
from nbrl.tasks.errors import UpdateError, fault_in_words
from nbrl.tasks.layout.checkpoints import ORDER, RESULT, STATES, run_of_checkpoint, updates_of
from nbrl.tasks.layout.shared import lies_below
from nbrl.tasks.learner.orders import OrderTables, UpdateOrder, UpdateResult


def order_digest(order: UpdateOrder, tables: OrderTables, start: str) -> str:
    """The digest of everything that decides an order's result. `start` is the identity of the checkpoint that it starts from, or
    the digest of the initial model.

    As it names the start, the digests of a run's checkpoints are a chain from the initial model.
    """
    estimator = order.estimator.model_dump_json(exclude={"per_ability"}) if order.estimator else ""
    contents = [_content_digest(table) for table in (tables.trajectories, tables.advantages)]
    decisive = [order.iteration, order.seed, estimator, start, *contents, order.dtype, order.proof_token_ids]
    decisive += [order.rounding] if order.rounding != "nearest" else []
    decisive += [] if order.steps is None else [f"{order.steps} steps"]
    decisive += ["per ability"] if order.estimator and order.estimator.per_ability else []
    decisive += [f"{order.staleness} updates old"] if order.staleness else []
    return hashlib.sha256(json.dumps(decisive).encode()).hexdigest()


def _content_digest(table: pa.Table) -> str:
    """SHA-256 of what a Parquet file holds: its bytes differ with the version of the library that wrote it."""
    table, buffer = table.replace_schema_metadata().combine_chunks(), io.BytesIO()
    with pa.ipc.new_stream(buffer, table.schema) as stream:
        stream.write_table(table)
    return hashlib.sha256(buffer.getbuffer()).hexdigest()


def checkpoint_identity(storage: Storage, checkpoint: str) -> str:
    """The digest of a checkpoint's result. Raises UpdateError if it is not a finished one."""
    data = _result_bytes(storage, checkpoint)
    _parsed(storage, checkpoint, data)
    return sha256(data)


def result_of(storage: Storage, checkpoint: str) -> UpdateResult:
    """The result of the order that made a checkpoint. Raises UpdateError if it is not a finished one."""
    return _parsed(storage, checkpoint, _result_bytes(storage, checkpoint))


def _parsed(storage: Storage, checkpoint: str, data: bytes) -> UpdateResult:
    try:
        return UpdateResult.model_validate_json(data)
    except ValidationError as error:
        fault = f"its {RESULT} is spoilt ({fault_in_words(error)})"
        raise UpdateError(f"{storage.uri(checkpoint)} is not a finished checkpoint, {fault}: take it away") from error


def _result_bytes(storage: Storage, checkpoint: str) -> bytes:
    try:
        return storage.read_bytes(f"{checkpoint}/{RESULT}")
    except MissingError as error:
        raise UpdateError(
            f"{storage.uri(checkpoint)} is not a finished checkpoint, it has no {RESULT} to read: take it away"
        ) from error


class Repeats(NamedTuple):
    """Orders to carry out again, the oldest first, on the state of the checkpoint `base`; None is the initial model."""

    base: str | None
    orders: list[UpdateOrder]


def repeats(storage: Storage, checkpoint: str | None) -> Repeats:
    """Return the way to a checkpoint; without orders where it has a state. None is the initial model.

    Raises MissingError or DamagedError where there is none.
    """
    orders: list[UpdateOrder] = []
    base = checkpoint
    while base is not None and not has_state(storage, base):
        orders.append(_order_of(storage, base))
        base = orders[-1].checkpoint_in
    return Repeats(base, orders[::-1])


def has_state(storage: Storage, checkpoint: str) -> bool:
    """Whether the manifest names a state. Raises DamagedError."""
    try:
        return any(name.startswith(STATES) for name in storage.read_manifest(checkpoint))
    except MissingError:
        return False


def _order_of(storage: Storage, checkpoint: str) -> UpdateOrder:
    """The order that made a checkpoint. It may be a stranger's: what it names must lie in the same run."""
    key = f"{checkpoint}/{ORDER}"
    try:
        order = UpdateOrder.model_validate_json(storage.read_bytes(key))
    except MissingError as error:
        raise MissingError(
            f"{storage.uri(checkpoint)} has no state to go on from, and no {ORDER} by which its update could be repeated; "
            "bring them back from a copy"
        ) from error
    except ValidationError as error:
        raise DamagedError(f"{storage.uri(key)} is no order ({fault_in_words(error)}); bring it back from a copy") from error
    run = run_of_checkpoint(checkpoint)
    named = [each.key for each in (*order.trajectories, order.advantages)]
    if (before := order.checkpoint_in) is not None:
        named.append(before)
    elsewhere = [each for each in named if not lies_below(each, run)]
    if elsewhere or order.checkpoint_out != checkpoint or (before is not None and not _older(before, checkpoint)):
        fault = f"names {elsewhere[0]!r}" if elsewhere else f"makes {order.checkpoint_out} from {before}"
        raise DamagedError(f"{storage.uri(key)} is not the order of this checkpoint: it {fault}; bring it back from a copy")
    return order


def _older(before: str, checkpoint: str) -> bool:
    try:
        return updates_of(before) < updates_of(checkpoint)
    except ValueError:
        return False
