"""Log-probs of targets from hidden states, one slice of the vocabulary at a time."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

# Logits held at one time: few enough to stay in a core's cache, and enough to fill a GPU (256 MiB in float32).
LOGITS_AT_ONCE = {"cpu": 1 << 21, "cuda": 1 << 26}
# A slice has a multiple of so many ids: on a GPU, matrix products are slow unless rows of logits begin at whole 16 bytes.
WHOLE = {"cpu": 1, "cuda": 128}


def target_logprobs(hidden_ND: Tensor, weight_VD: Tensor, target_N: Tensor) -> Tensor:
    """Return log softmax(hidden @ weight.T) at the targets, [N] in float32 (float64 for float64).

    Neither pass holds more than LOGITS_AT_ONCE logits or gradients of them, or WHOLE of each target; the backward pass
    recomputes them, and computes a weight gradient only if the weight requires one. Each row of that gradient is written once,
    so its sum over targets is taken inside one matrix product. Liger's fused loss and torch's linear_cross_entropy are
    unsuitable: the first sums that gradient in its forward pass, before a token's weight is known, the second rounds log-probs
    to the dtype of the passes.
    """
    logp_N: Tensor = _TargetLogprobs.apply(hidden_ND, weight_VD, target_N)
    return logp_N


class _TargetLogprobs(Function):
    @staticmethod
    def forward(ctx: Any, hidden_ND: Tensor, weight_VD: Tensor, target_N: Tensor) -> Tensor:
        exact = torch.promote_types(hidden_ND.dtype, torch.float32)
        picked_N = torch.zeros(len(hidden_ND), dtype=exact, device=hidden_ND.device)
        logz_N = torch.full_like(picked_N, float("-inf"))
        for first, part_WD in _slices(hidden_ND, weight_VD):
            logits_NW = _logits(hidden_ND, part_WD)
            place_N1, here_N = _within(target_N - first, len(part_WD))
            picked_N += logits_NW.gather(1, place_N1)[:, 0].masked_fill_(~here_N, 0)
            top_N = logits_NW.amax(1).to(exact)
            logz_N = torch.logaddexp(logz_N, _exp(logits_NW, top_N).sum(1).log_().add_(top_N))
        ctx.save_for_backward(hidden_ND, weight_VD, target_N, logz_N)
        return picked_N - logz_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_N: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        hidden_ND, weight_VD, target_N, logz_N = ctx.saved_tensors
        for_hidden, for_weight, _ = ctx.needs_input_grad
        grad_hidden_ND = torch.zeros_like(hidden_ND, dtype=logz_N.dtype) if for_hidden else None
        grad_weight_VD = torch.empty_like(weight_VD) if for_weight else None
        weighed_ND = (-grad_N[:, None] * hidden_ND).to(hidden_ND.dtype)
        for first, part_WD in _slices(hidden_ND, weight_VD):
            # - d logp / d logits = softmax - onehot, formed in full precision: for a likely target the two nearly cancel
            rise_NW = _exp(_logits(hidden_ND, part_WD), logz_N)
            place_N1, here_N = _within(target_N - first, len(part_WD))
            rise_NW.scatter_(1, place_N1, rise_NW.gather(1, place_N1) - here_N[:, None].to(rise_NW.dtype))
            rise_NW = rise_NW.to(hidden_ND.dtype)
            if grad_hidden_ND is not None:
                grad_hidden_ND += rise_NW @ part_WD
            if grad_weight_VD is not None:
                torch.mm(rise_NW.T, weighed_ND, out=grad_weight_VD[first : first + len(part_WD)])
        if grad_hidden_ND is not None:
            grad_hidden_ND = grad_hidden_ND.mul_(-grad_N[:, None]).to(hidden_ND.dtype)
        return grad_hidden_ND, grad_weight_VD, None


def _logits(hidden_ND: Tensor, part_WD: Tensor) -> Tensor:
    """Return the logits of a slice. On a GPU those of 16-bit numbers are summed and kept in float32: 16 bits represent logits of
    16 and more in steps of 1/8.
    """
    if hidden_ND.device.type == "cuda" and hidden_ND.dtype.itemsize == 2:
        return torch.mm(hidden_ND, part_WD.T, out_dtype=torch.float32)
    return hidden_ND @ part_WD.T


def _exp(logits_NW: Tensor, less_N: Tensor) -> Tensor:
    """Return exp(logits - less) in the dtype of `less_N`; the logits are overwritten where they have that dtype."""
    out = logits_NW if logits_NW.dtype == less_N.dtype else None
    return torch.sub(logits_NW, less_N[:, None], out=out).exp_()


def _slices(hidden_ND: Tensor, weight_VD: Tensor) -> list[tuple[int, Tensor]]:
    """Yield runs of the vocabulary, each with its first id."""
    device = hidden_ND.device.type
    whole = WHOLE[device]
    width = max(1, LOGITS_AT_ONCE[device] // max(1, len(hidden_ND)) // whole) * whole
    return [(first, weight_VD[first : first + width]) for first in range(0, len(weight_VD), width)]


def _within(place_N: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Return each target's place in a slice as [N, 1], and whether it is there; others get some place."""
    return place_N.clamp(0, width - 1)[:, None], (place_N >= 0) & (place_N < width)
