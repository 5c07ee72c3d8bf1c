"""A table of log-probs of sampled tokens, one row for each action: of the trainer, or of a teacher."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from nbrl.tasks.errors import UpdateError
from nbrl.tasks.learner.arrays import Floats
from nbrl.tasks.learner.batch.targets import Targets

ROUNDING = 1e-2  # nats above 0 that a log-prob may be
TOKEN_LOGPROBS_SCHEMA = pa.schema([("trajectory", pa.string()), ("step", pa.int32()), ("logprobs", pa.list_(pa.float32()))])


def check_scores(logp_N: Floats, whose: str) -> None:
    """Raises UpdateError unless all are log-probs, so that nothing else is kept as a result."""
    with np.errstate(over="ignore"):
        stored_N = logp_N.astype(np.float32)  # as the table keeps them
    wrong = logp_N[~(np.isfinite(stored_N) & (stored_N <= ROUNDING))]
    if len(wrong):
        raise UpdateError(f"{whose} gives {len(wrong)} of {len(logp_N)} tokens no log-prob, such as {wrong[0]:g}")


def table_of(trajectories: Sequence[str], targets: Targets, logp_N: Floats) -> pa.Table:
    """Return a row for each action whose tokens have log-probs, in the order of the targets; NaN is none."""
    rows = [
        {"trajectory": trajectories[example], "step": step, "logprobs": logp_N[first : first + count]}
        for example, step, first, count in zip(targets.example_A, targets.step_A, targets.first_A, targets.count_A, strict=True)
        if not np.isnan(logp_N[first])
    ]
    return pa.Table.from_pylist(rows, schema=TOKEN_LOGPROBS_SCHEMA)


def logprobs_in(table: pa.Table, trajectories: Sequence[str], targets: Targets) -> Floats:
    """Return the log-probs [N] of all targets. Raises UpdateError if the table lacks an action, or has others for its tokens."""
    if not table.schema.equals(TOKEN_LOGPROBS_SCHEMA):
        raise UpdateError(f"the table of the teacher has columns {table.schema.names}, not {TOKEN_LOGPROBS_SCHEMA.names}")
    known = {(row["trajectory"], row["step"]): row["logprobs"] for row in table.to_pylist()}
    found = []
    for example, step, count in zip(targets.example_A, targets.step_A, targets.count_A, strict=True):
        logprobs = known.get((trajectories[example], int(step)), [])
        if len(logprobs) != count or not np.isfinite(np.array(logprobs, dtype=np.float64)).all():
            raise UpdateError(
                f"the teacher's table has {len(logprobs)} log-probs for the {count} tokens of step {step} of trajectory "
                f"{trajectories[example]}, or some that are no finite number"
            )
        found.append(np.array(logprobs, dtype=np.float64))
    return np.concatenate([np.zeros(0), *found])
