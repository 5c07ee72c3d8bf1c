"""Values of packed trees under an unmodified Hugging Face model with a value head."""

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from nbrl.tasks.learner.attention.tree_attention import TreeMask


class Critic(nn.Module):
    """A model without its language-model head, and a linear head that starts at 0: every initial value is 0, whatever the seed.

    A target's value is that of the state in which it was sampled, read where the policy predicts it.
    """

    def __init__(self, lm: PreTrainedModel) -> None:
        super().__init__()
        self.base_model = lm.base_model.eval()
        parameter = next(lm.parameters())
        self.head = nn.Linear(lm.config.hidden_size, 1, dtype=parameter.dtype, device=parameter.device)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, input_ids_T: Tensor, positions_T: Tensor, tree: TreeMask, predictor_N: Tensor) -> Tensor:
        """value_N in float32 (float64 for a float64 model)."""
        out = self.base_model(
            input_ids=input_ids_T[None], position_ids=positions_T[None], attention_mask=None, use_cache=False, tree=tree
        )
        value_N1: Tensor = self.head(out.last_hidden_state[0][predictor_N])
        if value_N1.dtype != torch.float64:
            value_N1 = value_N1.float()
        return value_N1.sum(dim=1)  # not a view, which FSDP cannot follow
