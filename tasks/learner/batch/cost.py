"""What a forward pass computes, by which ranks are given like shares."""

from dataclasses import dataclass

from transformers import PreTrainedModel


@dataclass(frozen=True)
class Cost:
    """Floating-point operations of a forward pass: of a token in the layers, of a pair of query and key in the attention, of a
    target in the head. The backward pass takes twice as many of each.
    """

    token: int
    pair: int
    target: int

    def path(self, tokens: int) -> int:
        """Of the first `tokens` tokens of a root path, which attend to one another causally."""
        return self.token * tokens + self.pair * (tokens * (tokens + 1) // 2)


def cost_of(lm: PreTrainedModel) -> Cost:
    """From the model's shape: two for each weight, and two for each element of a query head in the scores and in the sums.

    Of experts, stacked in parameters of three dimensions, a token meets only some.
    """
    config = lm.config
    size = config.to_dict().get("head_dim") or config.hidden_size // config.num_attention_heads
    embedding = config.vocab_size * config.hidden_size
    apart = embedding if config.tie_word_embeddings else 2 * embedding
    met = [each.numel() if each.ndim < 3 else each.shape[1:].numel() * config.num_experts_per_tok for each in lm.parameters()]
    return Cost(
        token=2 * (sum(met) - apart),
        pair=4 * config.num_hidden_layers * config.num_attention_heads * size,
        target=2 * embedding,
    )
