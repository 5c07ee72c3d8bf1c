"""The shape of a tiny model that is made from nothing."""

from pydantic import BaseModel, ConfigDict, Field


class FreshModel(BaseModel):
    """A Qwen3 of a million parameters with a tokenizer of its own for the generated world."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    vocab_size: int = Field(640, ge=320, description="tokens of the byte-level BPE, special tokens included")
    hidden_size: int = Field(128, ge=16, description="width of the model")
    layers: int = Field(4, ge=1, description="transformer layers")
    heads: int = Field(4, ge=1, description="attention heads of a layer")
    kv_heads: int = Field(2, ge=1, description="key and value heads; several attention heads share one")
    intermediate_size: int = Field(384, ge=16, description="width of the feed-forward layers")
    rope_theta: float = Field(10_000.0, gt=0, description="base of the rotary position embedding")
    max_positions: int = Field(1024, ge=256, description="maximum tokens of the model's context")
    sums: float = Field(
        0.0,
        ge=0,
        le=0.5,
        description="share of sums of two numbers, as reasoning-gym's chain_sum asks for them, among the texts of the tokenizer; "
        "needs the extra gym",
    )
