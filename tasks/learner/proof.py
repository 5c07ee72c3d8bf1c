"""The proof of a publish: log-probs of sampled tokens under the new weights, as close as engine and trainer were before."""

from collections.abc import Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from nbrl.infra.closed import ClosedModel

QUANTILE = 0.99


class Mismatch(BaseModel):
    """The mean of the absolute differences of log-probs, in nats, and the one that 99 % of them do not exceed."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")

    mean: float
    high: float

    @classmethod
    def of(cls, differences: Sequence[float]) -> "Mismatch":
        """Return the mismatch; NaN if a difference is no finite number. There must be at least one."""
        sizes = np.abs(np.asarray(differences, dtype=np.float64))
        if not np.isfinite(sizes).all():
            return cls(mean=float("nan"), high=float("nan"))
        return cls(mean=float(sizes.mean()), high=float(np.quantile(sizes, QUANTILE)))

    def times(self, other: "Mismatch", floor: "Mismatch") -> float:
        """Return the larger of both figures as a multiple of the other's, each of which counts as that of `floor` at least."""
        ratios = self.mean / max(other.mean, floor.mean), self.high / max(other.high, floor.high)
        return float(np.max(ratios))  # NaN if one of them is


class ProofSequence(BaseModel):
    """`logprobs` are the trainer's of `token_ids` from number `first` on, each given the ids before it, under the new weights."""

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")

    token_ids: list[int]
    first: int = Field(ge=1)
    logprobs: list[float]


class Proof(ClosedModel):
    """Sequences to score, and the mismatch of engine and trainer over the batch's sampled tokens before the first step.

    `before` is None where nothing sampled was scored before the first step.
    """

    sequences: list[ProofSequence]
    before: Mismatch | None
