"""The log-probs that the learner computes for sampled tokens before the policy moves, to be read beside those of the engine."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch.distributed as dist
from torch import Tensor

from nbrl.tasks.layout.checkpoints import TOKEN_LOGPROBS
from nbrl.tasks.learner.arrays import Floats
from nbrl.tasks.learner.batch.batch import Batch
from nbrl.tasks.learner.batch.targets import Targets
from nbrl.tasks.learner.step.batch_constants import BatchConstants

TOKEN_LOGPROBS_SCHEMA = pa.schema([("trajectory", pa.string()), ("step", pa.int32()), ("logprobs", pa.list_(pa.float32()))])


def gather(constants: BatchConstants, targets: Targets, examples: list[int], first_N: Tensor) -> Floats:
    """Collective. Log-probs [N] under the policy before the first optimiser step, NaN where it forwarded nothing before that.

    `first_N` has what this rank forwarded in the first step, which is of `examples`, and 0 elsewhere.
    """
    if constants.old_N is not None:
        before_N: Floats = constants.old_N.cpu().numpy()
        return before_N
    dist.all_reduce(first_N)
    return np.where(np.isin(targets.example_N, examples), first_N.cpu().numpy(), np.nan)


def write(folder: Path, batch: Batch, logp_N: Floats) -> None:
    """Write one row for each action whose tokens have log-probs, in the order of the batch. Raises UpdateError if it cannot."""
    targets = Targets.of(batch.forest)
    rows = [
        {"trajectory": batch.trajectories[example], "step": step, "logprobs": logp_N[first : first + count]}
        for example, step, first, count in zip(targets.example_A, targets.step_A, targets.first_A, targets.count_A, strict=True)
        if not np.isnan(logp_N[first])
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=TOKEN_LOGPROBS_SCHEMA), folder / TOKEN_LOGPROBS)
