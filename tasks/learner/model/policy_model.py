"""Policy and critic: unmodified Hugging Face models over packed trees."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from nbrl.tasks.errors import UpdateError
from nbrl.tasks.learner.attention.paths import PathRows
from nbrl.tasks.learner.attention.tree_attention import TreeMask, tree_mask
from nbrl.tasks.learner.model.forward import Forward
from nbrl.tasks.learner.model.logprob import target_logprobs
from nbrl.tasks.learner.model.router_replay import RouterReplay


def hidden_states(
    base: nn.Module, input_ids_T: Tensor, positions_T: Tensor, tree: TreeMask | PathRows, index_N: Tensor
) -> Tensor:
    """Return the last hidden states [N, D] at N tokens of the tree, forwarded at once or as paths of their own."""
    if isinstance(tree, PathRows):
        return tree.pick(base(**_sequences(input_ids_T, tree)).last_hidden_state, index_N)
    out = base(input_ids=input_ids_T[None], position_ids=positions_T[None], attention_mask=None, use_cache=False, tree=tree)
    hidden_ND: Tensor = out.last_hidden_state[0].index_select(0, index_N)
    return hidden_ND


def _sequences(input_ids_T: Tensor, paths: PathRows) -> dict[str, Any]:
    """Return the arguments of a model that reads plain sequences; those of a row that holds several have positions."""
    given = {"input_ids": paths.ids(input_ids_T), "use_cache": False}
    return given if paths.position_BL is None else given | {"position_ids": paths.position_BL}


class PolicyModel(nn.Module):
    """The model with a forward that returns one log-prob per target; this is the root module that FSDP2 shards.

    Logits are computed only at predicting positions and one slice of the vocabulary at a time. The model must be in evaluation
    mode: with dropout, the trained policy would differ from the sampled one.
    """

    def __init__(self, lm: PreTrainedModel, forward: Forward | None = None) -> None:
        """Wrap the model. Raises UpdateError if its last layer is more than one matrix, and it has not its own head."""
        super().__init__()
        self.lm = lm.eval()
        self.how = forward or Forward()
        self.replay: RouterReplay | None = None
        head = lm.get_output_embeddings()
        if not self.how.own_head and (not isinstance(head, nn.Linear) or head.bias is not None):
            raise UpdateError(
                f"the output layer of {type(lm).__name__} is {head}, not one matrix; train a model of the Qwen or Llama kind"
            )

    def forward(
        self,
        input_ids_T: Tensor,
        positions_T: Tensor,
        tree: TreeMask | PathRows,
        predictor_N: Tensor,
        target_N: Tensor,
        route_TX: Tensor | None = None,
    ) -> Tensor:
        """Return logp_N in float32 (float64 for a float64 model), with the experts of `route_TX` where the model replays them."""
        if self.replay is not None:
            self.replay.set(tree.rows(route_TX) if isinstance(tree, PathRows) and route_TX is not None else route_TX)
        if self.how.own_head:
            logits_NV = self._own_logits(input_ids_T, positions_T, tree, predictor_N)
            exact_NV = logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32))
            return torch.log_softmax(exact_NV, dim=-1).gather(1, target_N[:, None])[:, 0]
        hidden_ND = hidden_states(self.lm.base_model, input_ids_T, positions_T, tree, predictor_N)
        return target_logprobs(hidden_ND, self.lm.get_output_embeddings().weight, target_N)

    def forward_two(self, route_TX: Tensor) -> Tensor:
        """Forward two tokens with these routes, before the model is sharded; for a check of whether it takes them."""
        device = next(self.lm.parameters()).device
        ends, positions, place = np.array([2, 2]), np.arange(2), torch.zeros(1, dtype=torch.int64, device=device)
        paths = self.how.paths
        tree = PathRows(ends, positions, device, self.how.packed) if paths else tree_mask(ends, device)
        ids_T = torch.zeros(2, dtype=torch.int64, device=device)
        found_N: Tensor = self(ids_T, torch.from_numpy(positions).to(device), tree, place, place, route_TX.to(device))
        return found_N

    def _own_logits(self, input_ids_T: Tensor, positions_T: Tensor, tree: TreeMask | PathRows, predictor_N: Tensor) -> Tensor:
        """Return the model's own logits [N, V], which may be capped, scaled or shifted."""
        if isinstance(tree, PathRows):
            return tree.pick(self.lm(**_sequences(input_ids_T, tree)).logits, predictor_N)
        out = self.lm(input_ids=input_ids_T[None], position_ids=positions_T[None], use_cache=False, tree=tree)
        logits_NV: Tensor = out.logits[0].index_select(0, predictor_N)
        return logits_NV


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

    def forward(self, input_ids_T: Tensor, positions_T: Tensor, tree: TreeMask | PathRows, predictor_N: Tensor) -> Tensor:
        """Return value_N in float32 (float64 for a float64 model)."""
        value_N1: Tensor = self.head(hidden_states(self.base_model, input_ids_T, positions_T, tree, predictor_N))
        if value_N1.dtype != torch.float64:
            value_N1 = value_N1.float()
        return value_N1.sum(dim=1)  # not a view, which FSDP cannot follow
