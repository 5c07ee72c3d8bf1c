"""Attention of a packed tree on a CPU: segments and prefixes, merged by their log-sum-exp."""

from typing import Any

import torch
from torch import Tensor

from nbrl.tasks.learner.attention.segments import Prefix, Segment, SegmentPlan

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class SegmentAttention:
    """The attention of one tree. Not a dataclass or another container, so that FSDP passes it on unchanged."""

    def __init__(self, plan: SegmentPlan) -> None:
        self.plan = plan
        self._masks: list[Tensor | None] = []

    def attend(self, query_1HTD: Tensor, key_1GTD: Tensor, value_1GTD: Tensor, scaling: float) -> Tensor:
        """Return the outputs [1, T, H, D] of H query heads on G key-value heads."""
        out_1THD: Tensor = _Split.apply(query_1HTD, key_1GTD, value_1GTD, self, scaling)
        return out_1THD

    def masks(self, dtype: torch.dtype) -> list[Tensor | None]:
        """Return for each segment a mask [1, 1, Q, Q], 0 where a query may attend, else minus infinity, or None."""
        if not self._masks or any(mask is not None and mask.dtype != dtype for mask in self._masks):
            self._masks = [_additive(segment, dtype) for segment in self.plan.segments]
        return self._masks


def _additive(segment: Segment, dtype: torch.dtype) -> Tensor | None:
    if segment.mask_QK is None:
        return None
    hidden_QK = torch.from_numpy(~segment.mask_QK)
    return torch.zeros(hidden_QK.shape, dtype=dtype).masked_fill_(hidden_QK, float("-inf"))[None, None]


class _Split(torch.autograd.Function):
    """Computes each rectangle by torch's flash kernel, which returns an output and the log-sum-exp of the scores.

    The attention to several sets of keys is the mean of the attentions to each, weighed by the exponents of their log-sum-exps.
    Its gradient splits likewise: the kernel's backward pass recomputes probabilities as exp(score - log-sum-exp), so with the
    output and the log-sum-exp over all keys it returns a rectangle's part of the full gradient. Sums are in float32 or better.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, tree: SegmentAttention, scaling: float) -> Tensor:
        _, heads, tokens, size = query.shape
        exact = torch.promote_types(query.dtype, torch.float32)
        out_1THD = torch.empty(1, tokens, heads, size, dtype=exact)
        lse_1TH = torch.empty(1, tokens, heads, dtype=exact)
        out, lse = out_1THD.transpose(1, 2), lse_1TH.transpose(1, 2)
        for segment, mask in zip(tree.plan.segments, tree.masks(query.dtype), strict=True):
            own = slice(segment.start, segment.stop)
            part, part_lse = _forward(
                query[:, :, own], key[:, :, own], value[:, :, own], 0.0, mask is None, attn_mask=mask, scale=scaling
            )
            out[:, :, own], lse[:, :, own] = part, part_lse
        for prefix in tree.plan.prefixes:
            rows, keys = _slices(prefix)
            part, part_lse = _forward(query[:, :, rows], key[:, :, keys], value[:, :, keys], 0.0, False, scale=scaling)
            held_lse = lse[:, :, rows]
            weight = torch.sigmoid(part_lse - held_lse)[..., None]
            out[:, :, rows].lerp_(part.to(exact), weight.expand(part.shape))
            torch.logaddexp(held_lse, part_lse, out=held_lse)
        out_1THD = out_1THD.to(query.dtype)
        ctx.save_for_backward(query, key, value, out_1THD, lse_1TH)
        ctx.tree, ctx.scaling = tree, scaling
        return out_1THD

    @staticmethod
    def backward(ctx: Any, grad_1THD: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:  # type: ignore[override]
        query, key, value, out_1THD, lse_1TH = ctx.saved_tensors
        tree: SegmentAttention = ctx.tree
        grad, out, lse = (each.transpose(1, 2) for each in (grad_1THD.contiguous(), out_1THD, lse_1TH))
        sums = [torch.empty_like(each, dtype=lse.dtype) for each in (query, key, value)]

        def parts(rows: slice, keys: slice, mask: Tensor | None, causal: bool) -> tuple[Tensor, Tensor, Tensor]:
            gradients: tuple[Tensor, Tensor, Tensor] = _backward(
                grad[:, :, rows],
                query[:, :, rows],
                key[:, :, keys],
                value[:, :, keys],
                out[:, :, rows],
                lse[:, :, rows],
                0.0,
                causal,
                attn_mask=mask,
                scale=ctx.scaling,
            )
            return gradients

        for segment, mask in zip(tree.plan.segments, tree.masks(query.dtype), strict=True):
            own = slice(segment.start, segment.stop)
            for total, part in zip(sums, parts(own, own, mask, mask is None), strict=True):
                total[:, :, own] = part
        for prefix in tree.plan.prefixes:
            rows, keys = _slices(prefix)
            for total, where, part in zip(sums, (rows, keys, keys), parts(rows, keys, None, False), strict=True):
                total[:, :, where] += part
        query_grad, key_grad, value_grad = (each.to(query.dtype) for each in sums)
        return query_grad, key_grad, value_grad, None, None


def _slices(prefix: Prefix) -> tuple[slice, slice]:
    return slice(prefix.start, prefix.stop), slice(prefix.first, prefix.last)
