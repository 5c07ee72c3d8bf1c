"""What a run or an evaluation cost."""

from collections.abc import Iterable, Sequence

from pydantic import BaseModel, ConfigDict

from nbrl.tasks.runs.history import Record

NOT_NODES = ("overhead", "overhead_share")


class Cost(BaseModel):
    """Wall, processor and GPU seconds are by node; `iteration` is the wall time of whole iterations.

    Held-out evaluations of a run are not in it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    iterations: int | None
    trajectories: int
    sampled_tokens: int
    seconds: dict[str, float]
    processor_seconds: dict[str, float]
    gpu_seconds: dict[str, float]


def cost_of(records: Sequence[Record]) -> Cost:
    """That of these iterations."""
    return Cost(
        iterations=len(records),
        trajectories=int(sum(record.metrics.get("rollout/trajectories", 0.0) for record in records)),
        sampled_tokens=int(sum(map(tokens_of, records))),
        seconds=_by_node(records, "time/"),
        processor_seconds=_by_node(records, "cpu/"),
        gpu_seconds=_by_node(records, "gpu/"),
    )


def tokens_of(record: Record) -> float:
    """Tokens that the policy sampled in an iteration, in all its rounds."""
    return record.metrics.get("rollout/sampled_tokens", 0.0)


def _by_node(records: Iterable[Record], prefix: str) -> dict[str, float]:
    found: dict[str, float] = {}
    for record in records:
        for name, value in record.metrics.items():
            node = name.removeprefix(prefix)
            if name.startswith(prefix) and node not in NOT_NODES:
                found[node] = found.get(node, 0.0) + value
    return found
