"""The cost of a forward pass, by which work is divided evenly over ranks."""

from dataclasses import dataclass

from transformers import PreTrainedModel


@dataclass(frozen=True)
class Cost:
    """Floating-point operations of a forward pass: per token in the layers, per pair of query and key in the attention, and per
    target in the head. The backward pass takes twice as many of each.
    """

    token: int
    pair: int
    target: int

    def path(self, tokens: int) -> int:
        """Operations for the first `tokens` tokens of a root path, which attend to one another causally."""
        return self.token * tokens + self.pair * (tokens * (tokens + 1) // 2)


def cost_of(lm: PreTrainedModel) -> Cost:
    """Compute the cost from the model's shape: two per weight, and two per element of a query head in the scores and in the sums.

    Of experts, which are stacked in parameters of three dimensions, a token uses only some.
    """
    config = lm.config
    size = config.to_dict().get("head_dim") or config.hidden_size // config.num_attention_heads
    embedding = config.vocab_size * config.hidden_size
    apart = embedding if config.tie_word_embeddings else 2 * embedding
    used = [p.numel() if p.ndim < 3 else p.shape[1:].numel() * config.num_experts_per_tok for p in lm.parameters()]
    return Cost(
        token=2 * (sum(used) - apart),
        pair=4 * config.num_hidden_layers * config.num_attention_heads * size,
        target=2 * embedding,
    )
