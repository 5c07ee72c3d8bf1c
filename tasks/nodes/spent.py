"""What a node spent besides wall time."""

from collections.abc import Mapping

from nbrl.infra.gpu import gpus
from nbrl.tasks.runs.config import RunConfig

SAMPLING, LEARNING = ("rollout", "publish", "evaluate"), ("update",)


def gpus_of(node: str, config: RunConfig, present: int | None = None) -> int:
    """GPUs that a node uses: all of the engines, or one for each rank of the learner; none on other nodes.

    `present` are those of this machine, by which `auto` chooses.
    """
    present = gpus() if present is None else present
    if node in SAMPLING:
        used = config.engine.device == "cuda" or (config.engine.device == "auto" and present > 0)
        return config.engine.count * config.engine.tensor_parallel if used else 0
    if node in LEARNING or (node == "advantage" and config.learner_estimates):
        used = config.update.device == "cuda" or (config.update.device == "auto" and present > 0)
        return config.update.workers if used else 0
    return 0


def metrics(node: str, seconds: float, processor: float, used: int) -> Mapping[str, float]:
    """Processor-seconds, and GPU-seconds where GPUs were used: they are held for the whole of the node's wall time."""
    gpu = {f"gpu/{node}": seconds * used} if used else {}
    return {f"cpu/{node}": max(0.0, processor), **gpu}
