"""The fields of a model's config.json that decide how much memory it takes: its widths."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict


class Shape(BaseModel):
    """Widths of a model, with transformers' names."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int = 0
    tie_word_embeddings: bool = False
    model_type: str = ""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "Shape | None":
        """Return the shape; None where a family names its fields otherwise."""
        try:
            heads = config["num_attention_heads"]
            given = {"num_key_value_heads": heads, "head_dim": config["hidden_size"] // heads}
            return cls.model_validate(given | {key: value for key, value in config.items() if value is not None})
        except (KeyError, ValueError, TypeError, ZeroDivisionError):
            return None

    @property
    def queries(self) -> int:
        """Return the numbers of a token's queries in a layer."""
        return self.num_attention_heads * self.head_dim

    @property
    def keys(self) -> int:
        """Return the numbers of a token's keys in a layer, and of its values."""
        return self.num_key_value_heads * self.head_dim

    @property
    def layer_parameters(self) -> int:
        return self.hidden_size * (2 * self.queries + 2 * self.keys + 3 * self.intermediate_size)

    @property
    def embedding_parameters(self) -> int:
        """Return the parameters of one of the two embeddings, where they are not tied."""
        return self.vocab_size * self.hidden_size

    @property
    def parameters(self) -> int:
        """Return the parameters of all matrices."""
        embeddings = self.embedding_parameters * (1 if self.tie_word_embeddings else 2)
        return self.num_hidden_layers * self.layer_parameters + embeddings


def _qwen(hidden: int, inner: int, layers: int, heads: int, keys: int, vocabulary: int, tied: bool, kind: str) -> Shape:
    return Shape(
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=keys,
        head_dim=128,
        vocab_size=vocabulary,
        tie_word_embeddings=tied,
        model_type=kind,
    )


# Of the models in nbrl's recipes, so that their memory is known before they are fetched.
KNOWN = {
    "Qwen/Qwen3-0.6B": _qwen(1024, 3072, 28, 16, 8, 151_936, True, "qwen3"),
    "Qwen/Qwen3-4B": _qwen(2560, 9728, 36, 32, 8, 151_936, True, "qwen3"),
    "Qwen/Qwen2.5-7B-Instruct": _qwen(3584, 18_944, 28, 28, 4, 152_064, False, "qwen2"),
}
