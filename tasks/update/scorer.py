"""Log-probs of packed trees under an unmodified Hugging Face causal model."""

# ruff: noqa: N803, N806 - suffixes of tensor names are shapes

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from tasks.update.attention import TreeMask

LOGITS_AT_ONCE = 1 << 26  # rows of logits * vocabulary held at one time: 256 MiB in float32


class Scorer(nn.Module):
    """The model with a forward that gives one log-prob a target; this is the root module that FSDP2 shards.

    Logits are made at predicting positions only and, for a large vocabulary, a slice of them at a time (made again in the
    backward pass), so logits of the whole micro-batch are never held. The model must be in evaluation mode: dropout would
    make the policy that is trained another one than the policy that was sampled.
    """

    def __init__(self, lm: PreTrainedModel) -> None:
        super().__init__()
        self.lm = lm.eval()

    def forward(self, input_ids_T: Tensor, positions_T: Tensor, tree: TreeMask, predictor_N: Tensor, target_N: Tensor) -> Tensor:
        """logp_N in float32 (float64 for a float64 model)."""
        out = self.lm.base_model(
            input_ids=input_ids_T[None], position_ids=positions_T[None], attention_mask=None, use_cache=False, tree=tree
        )
        hidden_ND = out.last_hidden_state[0][predictor_N]
        rows = max(1, LOGITS_AT_ONCE // self.lm.config.vocab_size)
        if hidden_ND.shape[0] <= rows:
            return self._score(hidden_ND, target_N)
        slices = zip(hidden_ND.split(rows), target_N.split(rows), strict=True)
        return torch.cat([checkpoint(self._score, hidden, target, use_reentrant=False) for hidden, target in slices])

    def _score(self, hidden_ND: Tensor, target_N: Tensor) -> Tensor:
        logits_NV = self.lm.get_output_embeddings()(hidden_ND)
        if logits_NV.dtype != torch.float64:
            logits_NV = logits_NV.float()
        return logits_NV.gather(1, target_N[:, None])[:, 0] - torch.logsumexp(logits_NV, dim=1)
