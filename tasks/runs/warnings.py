"""What a person should know of a configuration and its questions before work starts, though nothing prevents it."""

from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.data_review import review
from nbrl.tasks.runs.prepared import Prepared


def warnings_of(start: Prepared) -> list[str]:
    """One sentence each: of its engines, and of its questions as `review` has them."""
    return [*_engines(start.config), *review(start)]


def _engines(config: RunConfig) -> list[str]:
    if config.engine.resolved_device == "cpu" and config.engine.dtype == "bfloat16":
        return [
            "engine.dtype bfloat16 on a CPU samples faster, but its log-probabilities are off by about 0.05 nats in the mean, "
            "which a training sees as mismatch (mismatch/logprob_mean_abs); engine.dtype auto computes in float32"
        ]
    return []
