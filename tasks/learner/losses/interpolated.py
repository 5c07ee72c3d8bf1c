"""Log-probs of the policy before the step without a pass over it (A-3PO, arXiv 2512.06547)."""

from torch import Tensor


def interpolated(logp_N: Tensor, engine_N: Tensor, staleness: int) -> Tensor:
    """log mu + alpha (log pi - log mu), constant: between the policy mu that sampled and the current one pi, whose versions lie
    `staleness` + 1 updates apart, of which the policy before the step has gone alpha = staleness / (staleness + 1) of the way.
    """
    return engine_N + staleness / (staleness + 1) * (logp_N.detach() - engine_N)
