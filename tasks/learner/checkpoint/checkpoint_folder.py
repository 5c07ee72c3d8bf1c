"""A checkpoint folder: `state/` (sharded, to resume from) and with a critic its state in `critic/`, `hf/` (safetensors, to
serve), `logprobs.parquet` (the learner's log-probs of the sampled tokens), `result.json` (the result of the order) and
`manifest.json` (the SHA-256 of every file). With LoRA the states hold only adapters, `hf/` is merged, and `adapter/` is in
peft's format.

It is written as `<folder>.partial` and renamed once complete, so a folder of that name is either absent or complete.
"""

import hashlib
import io
import json
import os
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import ValidationError

from nbrl.infra.blobs import flush_folder
from nbrl.infra.errors import DamagedError, MissingError
from nbrl.infra.manifest import check_whole, write_manifest
from nbrl.tasks.errors import UpdateError, fault_in_words
from nbrl.tasks.layout import RESULT
from nbrl.tasks.learner.orders import UpdateOrder, UpdateResult


def partial(folder: str) -> Path:
    return Path(f"{folder}.partial")


def order_digest(order: UpdateOrder) -> str:
    """The digest of everything that decides an order's result, which identifies it wherever its files are.

    As it names the checkpoint that the order starts from, the digests of a run's checkpoints are a chain from the initial model.
    """
    estimator = order.estimator.model_dump_json() if order.estimator else ""
    start = identity(order.checkpoint_in) if order.checkpoint_in else order.initial
    tables = [_content_digest(table) for table in (order.trajectories, order.advantages)]
    decisive = [order.iteration, order.seed, estimator, start, *tables, order.dtype, order.proof_token_ids]
    decisive += [order.rounding] if order.rounding != "nearest" else []
    decisive += [] if order.steps is None else [f"{order.steps} steps"]
    return hashlib.sha256(json.dumps(decisive).encode()).hexdigest()


def _content_digest(path: str) -> str:
    """SHA-256 of what a Parquet file holds: its bytes differ with the version of the library that wrote it."""
    table, buffer = pq.read_table(path).replace_schema_metadata().combine_chunks(), io.BytesIO()
    with pa.ipc.new_stream(buffer, table.schema) as stream:
        stream.write_table(table)
    return hashlib.sha256(buffer.getbuffer()).hexdigest()


def earlier_result(order: UpdateOrder, digest: str) -> UpdateResult | None:
    """The result of the order if it was carried out before. A checkpoint that is damaged, or of another order of this iteration,
    is ignored.
    """
    try:
        check_whole(Path(order.checkpoint_out))
    except (MissingError, DamagedError):
        return None
    result = _result(order.checkpoint_out)
    if result.iteration != order.iteration:
        raise UpdateError(f"{order.checkpoint_out} is of iteration {result.iteration}, not {order.iteration}")
    return result if result.order == digest else None


def identity(folder: str) -> str:
    """A digest that identifies a checkpoint wherever it was copied. Raises UpdateError if it is not a finished one."""
    _result(folder)
    return hashlib.sha256((Path(folder) / RESULT).read_bytes()).hexdigest()


def _result(folder: str) -> UpdateResult:
    try:
        return UpdateResult.model_validate_json((Path(folder) / RESULT).read_bytes())
    except OSError as error:
        raise UpdateError(f"{folder} is not a finished checkpoint, it has no {RESULT} to read: take it away") from error
    except ValidationError as error:
        raise UpdateError(
            f"{folder} is not a finished checkpoint, its {RESULT} is spoilt ({fault_in_words(error)}): take it away"
        ) from error


def finish(folder: str, result: UpdateResult) -> None:
    """Rank 0 only: flush the partial folder to disk and make it the checkpoint, replacing that of another order."""
    (partial(folder) / RESULT).write_text(result.model_dump_json())
    write_manifest(partial(folder))
    shutil.rmtree(folder, ignore_errors=True)
    os.rename(partial(folder), folder)
    flush_folder(Path(folder).parent)


def clear_partial(folder: str) -> None:
    """Rank 0 only: make an empty partial folder, deleting what an interrupted order left."""
    shutil.rmtree(partial(folder), ignore_errors=True)
    partial(folder).mkdir(parents=True)
