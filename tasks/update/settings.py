"""Settings of the update."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class UpdateSettings(BaseModel):
    """One optimiser step per order: strictly on-policy, so there is no ratio and nothing to clip but the gradient."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    workers: int = Field(2, ge=1, description="data-parallel ranks; the weights are sharded over them")
    threads_per_worker: int = Field(1, ge=1, description="CPU threads of one worker's tensor operations")
    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto takes CUDA where the Ray cluster has GPUs enough")
    dtype: Literal["float32", "bfloat16", "float64"] = Field(
        "float32", description="of the forward and backward pass; bfloat16 keeps float32 master weights"
    )
    lr: float = Field(1e-6, gt=0)
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = Field(1e-8, gt=0)
    weight_decay: float = Field(0.01, ge=0)
    grad_clip: float = Field(1.0, gt=0, description="global norm above which the gradient is scaled down")
    warmup_steps: int = Field(0, ge=0, description="optimiser steps over which the learning rate rises linearly to lr")
    kl_coefficient: float = Field(0.001, ge=0, description="weight of the k3 estimate; 0 loads no reference model")
    kl_clamp: float = Field(10.0, gt=0, description="bound on |logp_ref - logp| inside the k3 estimate")
    tokens_per_micro_batch: int = Field(8192, ge=1, description="unique tokens of one forward; a longer trajectory goes alone")
    seed: int = Field(0, ge=0)
