"""Digests that identify orders and checkpoints, and the updates that make a state that a checkpoint lacks."""

import hashlib
import io
import json

import pyarrow as pa
from pydantic import ValidationError

from nbrl.infra.errors import MissingError
from nbrl.infra.storage import Storage, sha256
from nbrl.tasks.errors import UpdateError, fault_in_words
from nbrl.tasks.layout.checkpoints import RESULT
from nbrl.tasks.learner.orders import OrderTables, UpdateOrder, UpdateResult


def order_digest(order: UpdateOrder, tables: OrderTables, start: str) -> str:
    """Return the digest of everything that decides an order's result. `start` is the identity of the checkpoint that it starts
    from, or the digest of the initial model.

    As it names the start, the digests of a run's checkpoints are a chain from the initial model.
    """
    estimator = order.estimator.model_dump_json(exclude={"per_ability"}) if order.estimator else ""
    contents = [_content_digest(table) for table in (tables.trajectories, tables.advantages)]
    decisive = [order.iteration, order.seed, estimator, start, *contents, order.dtype, order.proof_token_ids]
    decisive += [] if order.steps is None else [f"{order.steps} steps"]
    decisive += ["per ability"] if order.estimator and order.estimator.per_ability else []
    decisive += [] if tables.teacher is None else ["teacher", _content_digest(tables.teacher)]
    decisive += [f"{order.staleness} updates old"] if order.staleness else []
    return hashlib.sha256(json.dumps(decisive).encode()).hexdigest()


def _content_digest(table: pa.Table) -> str:
    """Return the SHA-256 of what a Parquet file holds: its bytes differ with the version of the library that wrote it."""
    table, buffer = table.replace_schema_metadata().combine_chunks(), io.BytesIO()
    with pa.ipc.new_stream(buffer, table.schema) as stream:
        stream.write_table(table)
    return hashlib.sha256(buffer.getbuffer()).hexdigest()


def checkpoint_identity(storage: Storage, checkpoint: str) -> str:
    """Return the digest of a checkpoint's result. Raises UpdateError if it is not a finished one."""
    data = _result_bytes(storage, checkpoint)
    _parsed(storage, checkpoint, data)
    return sha256(data)


def result_of(storage: Storage, checkpoint: str) -> UpdateResult:
    """Return the result of the order that made a checkpoint. Raises UpdateError if it is not a finished one."""
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
