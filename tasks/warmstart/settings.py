"""How a tiny policy is made from nothing."""

from pydantic import BaseModel, ConfigDict, Field


class WarmstartSettings(BaseModel):
    """Copying is learned first, from good demonstrations only; habits are mixed in later. In reverse order it never is."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seed: int = Field(0, description="seed of every random draw")
    vocab_size: int = Field(640, ge=320, description="tokens of the byte-level BPE, special tokens included")
    hidden_size: int = Field(128, ge=16, description="width of the model")
    layers: int = Field(4, ge=1, description="transformer layers")
    heads: int = Field(4, ge=1, description="attention heads of a layer")
    kv_heads: int = Field(2, ge=1, description="key and value heads; several attention heads share one")
    intermediate_size: int = Field(384, ge=16, description="width of the feed-forward layers")
    rope_theta: float = Field(10_000.0, gt=0, description="base of the rotary position embedding")
    max_positions: int = Field(1024, ge=256, description="maximum tokens of the model's context")
    demonstrations: int = Field(16_000, ge=8, description="trajectories over both phases")
    copying_share: float = Field(
        0.65,
        ge=0,
        le=1,
        description="share of the demonstrations and steps of the first phase, which has only good demonstrations",
    )
    sums: float = Field(
        0.0,
        ge=0,
        le=0.5,
        description="share of the demonstrations that are sums of two numbers, as reasoning-gym's chain_sum asks for them; needs "
        "the extra gym",
    )
    good_fraction: float = Field(0.3, ge=0, le=1, description="share of good demonstrations in the mix")
    steps: int = Field(2_000, ge=1, description="optimiser steps")
    batch: int = Field(32, ge=1, description="actions per optimiser step, each with its own context")
    lr: float = Field(3e-3, gt=0, description="highest learning rate")
    warmup: float = Field(0.05, ge=0, lt=1, description="share of the steps during which the learning rate rises")
    weight_decay: float = Field(0.05, ge=0, description="share of a weight, times the learning rate, that is subtracted per step")
    clip: float = Field(1.0, gt=0, description="global norm above which the gradient is scaled down")
    log_every: int = Field(50, ge=1, description="steps between two lines of progress")
