"""Policy and critic: unmodified Hugging Face models over packed trees."""

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from nbrl.tasks.errors import UpdateError
from nbrl.tasks.learner.attention.tree_attention import TreeMask
from nbrl.tasks.learner.model.logprob import target_logprobs


class PolicyModel(nn.Module):
    """The model with a forward that returns one log-prob per target; this is the root module that FSDP2 shards.

    Logits are computed only at predicting positions and one slice of the vocabulary at a time. The model must be in evaluation
    mode: with dropout, the trained policy would differ from the sampled one.
    """

    def __init__(self, lm: PreTrainedModel) -> None:
        """Wrap the model. Raises UpdateError if its last layer is more than one matrix."""
        super().__init__()
        self.lm = lm.eval()
        head = lm.get_output_embeddings()
        if not isinstance(head, nn.Linear) or head.bias is not None:
            raise UpdateError(
                f"the output layer of {type(lm).__name__} is {head}, not one matrix; train a model of the Qwen or Llama kind"
            )

    def forward(self, input_ids_T: Tensor, positions_T: Tensor, tree: TreeMask, predictor_N: Tensor, target_N: Tensor) -> Tensor:
        """Return logp_N in float32 (float64 for a float64 model)."""
        out = self.lm.base_model(
            input_ids=input_ids_T[None], position_ids=positions_T[None], attention_mask=None, use_cache=False, tree=tree
        )
        hidden_ND = out.last_hidden_state[0].index_select(0, predictor_N)
        return target_logprobs(hidden_ND, self.lm.get_output_embeddings().weight, target_N)


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
        """Return value_N in float32 (float64 for a float64 model)."""
        out = self.base_model(
            input_ids=input_ids_T[None], position_ids=positions_T[None], attention_mask=None, use_cache=False, tree=tree
        )
        value_N1: Tensor = self.head(out.last_hidden_state[0][predictor_N])
        if value_N1.dtype != torch.float64:
            value_N1 = value_N1.float()
        return value_N1.sum(dim=1)  # not a view, which FSDP cannot follow
