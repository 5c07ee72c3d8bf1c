"""A checkpoint folder: `state/` (sharded, to go on from) and with a critic the same of it in `critic/`, `hf/` (safetensors, to
serve) and `result.json` (what the order gave). Under LoRA the states hold adapters alone, `hf/` is merged, and `adapter/` is
peft's.

It is made as `<folder>.partial` and renamed once whole, so a folder of that name is either absent or complete.
"""

import hashlib
import os
import shutil
from pathlib import Path

from pydantic import ValidationError

from nbrl.tasks.errors import UpdateError, fault_in_words
from nbrl.tasks.layout import RESULT
from nbrl.tasks.learner.orders import UpdateOrder, UpdateResult


def partial(folder: str) -> Path:
    return Path(f"{folder}.partial")


def earlier_result(order: UpdateOrder) -> UpdateResult | None:
    """The result of the order when it was carried out before."""
    if not Path(order.checkpoint_out).exists():
        return None
    result = _result(order.checkpoint_out)
    if result.iteration != order.iteration:
        raise UpdateError(f"{order.checkpoint_out} is of iteration {result.iteration}, not {order.iteration}")
    return result


def identity(folder: str) -> str:
    """What tells a checkpoint from every other wherever it was copied to. Raises UpdateError when it is not a finished one."""
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
    """Rank 0 only: make the partial folder the checkpoint."""
    (partial(folder) / RESULT).write_text(result.model_dump_json())
    os.rename(partial(folder), folder)


def clear_partial(folder: str) -> None:
    """Rank 0 only: an empty partial folder, whatever an interrupted order left."""
    shutil.rmtree(partial(folder), ignore_errors=True)
    partial(folder).mkdir(parents=True)
