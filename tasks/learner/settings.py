"""Settings of the update. Options that would have no effect are refused."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from nbrl.agent.text import check_address
from nbrl.infra.closed import FREE, FiniteModel, acts_if
from nbrl.infra.gpu import computes_in_bfloat16
from nbrl.infra.placement import Resources

Old = Annotated[
    Literal["trainer", "engine", "interpolated"],
    Field(
        description="log-probs of the old policy in the ratio. trainer: its own before the first step, from a pass of their own "
        "if there are several steps. engine: those of the policy that sampled. interpolated: between the engine's and the "
        "current ones by the age of the weights that sampled, which takes no pass; for pipeline.lag, with update.tis (A-3PO)"
    ),
]


class PolicyGradientLoss(FiniteModel):
    """-A log pi, strictly on-policy: one optimiser step per batch, so there is no ratio and only the gradient is clipped."""

    kind: Literal["policy_gradient"] = Field("policy_gradient", description="chooses this loss")


class PpoLoss(FiniteModel):
    """PPO's clipped ratio per token, with a lower bound for negative advantages (dual clip)."""

    kind: Literal["ppo"] = Field(description="chooses this loss")
    clip_low: float = Field(0.2, gt=0, lt=1, description="the ratio is clipped below at 1 - clip_low")
    clip_high: float = Field(0.25, gt=0, description="and above at 1 + clip_high")
    dual_clip: float | None = Field(3.0, gt=1, description="bound on ratio for negative advantages; none when not set")
    old: Old = "trainer"


class GspoLoss(FiniteModel):
    """GSPO: one length-normalised ratio for each sampled action, clipped as a whole."""

    kind: Literal["gspo"] = Field(description="chooses this loss")
    clip_low: float = Field(3e-4, gt=0, lt=1, description="the action's ratio is clipped below at 1 - clip_low")
    clip_high: float = Field(4e-4, gt=0, description="and above at 1 + clip_high")
    old: Old = "trainer"


class CispoLoss(FiniteModel):
    """CISPO: -sg(clipped ratio) A log pi; a clipped token keeps its gradient."""

    kind: Literal["cispo"] = Field(description="chooses this loss")
    clip_low: float = Field(1.0, gt=0, le=1, description="the weight is at least 1 - clip_low; 1 sets no bound")
    clip_high: float = Field(4.0, gt=0, description="and at most 1 + clip_high")
    old: Old = "trainer"


class DppoLoss(FiniteModel):
    """DPPO: the ratio; no gradient once a token's probability has moved by more than delta in the direction of A."""

    kind: Literal["dppo"] = Field(description="chooses this loss")
    delta: float = Field(0.2, gt=0, lt=1, description="how far a token's probability may move from that of the old policy")
    old: Old = "trainer"


class DistillLoss(FiniteModel):
    """On-policy distillation: the reverse KL to a teacher on every sampled token, alone or beside the reward. Strictly on-policy,
    as policy_gradient.
    """

    kind: Literal["distill"] = Field(description="chooses this loss")
    teacher: str = Field(
        min_length=1,
        description="who teaches, in the policy's tokens: a folder in Hugging Face format, RUN@N of this storage, or the "
        "address of a served model (SGLang), such as http://host:30000",
        json_schema_extra=FREE,
    )
    reward: float = Field(0.0, ge=0, description="weight of the reward's advantages beside the teacher; 0: the teacher alone")
    key: str | None = Field(
        None,
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*$",
        description="environment variable with the key of a served teacher; when not set, none is sent",
        json_schema_extra=FREE,
    )

    @property
    def served(self) -> bool:
        return self.teacher.startswith(("http://", "https://"))

    @model_validator(mode="after")
    def _addressed(self) -> Self:
        if self.served:
            check_address(self.teacher)
        elif self.key is not None:
            raise ValueError(f"key is for a served model, and teacher {self.teacher} is none; leave it out")
        return self


RatioLoss = PpoLoss | GspoLoss | CispoLoss | DppoLoss
LossSettings = Annotated[
    PolicyGradientLoss | PpoLoss | GspoLoss | CispoLoss | DppoLoss | DistillLoss, Field(discriminator="kind")
]


class TisSettings(FiniteModel):
    """Importance sampling between the engine that sampled, perhaps with older weights, and the trainer that learns:
    w = pi_trainer / pi_engine, a constant.
    """

    kind: Literal["truncate", "mask_tokens", "mask_actions", "mask_trajectories"] = Field(
        description="truncate: w held within [low, high]. mask_tokens: w where it is within [low, high], else 0. mask_actions: "
        "the same for the geometric mean of w over an action. mask_trajectories: a token's w where the geometric mean of w over "
        "its trajectory is within [low, high], else 0; takes a pass before the first step"
    )
    low: float | None = Field(
        None, gt=0, lt=1, description="lower bound of w; when not set, 1 / high for masks, and none for truncate"
    )
    high: float = Field(2.0, gt=1, description="upper bound of w")

    @property
    def bounds(self) -> tuple[float, float]:
        if self.low is not None:
            return self.low, self.high
        return 0.0 if self.kind == "truncate" else 1 / self.high, self.high


class CriticSettings(FiniteModel):
    """A separate model with a value head, begun from the policy's folder, for estimators that need values (gae, bilevel_*)."""

    lr: float = Field(1e-5, gt=0, description="learning rate of the critic")
    warmup_steps: int = Field(0, ge=0, description="optimiser steps over which its learning rate rises linearly to lr")
    value_clip: float | None = Field(
        None, gt=0, description="how far a value may move from the batch's first one; unlimited when not set"
    )


class LoraSettings(FiniteModel):
    """Low-rank adapters on a frozen policy: layers compute W + (alpha / rank) B A, and only A and B are trained.

    There is no dropout: the policy that is trained is the one that sampled.
    """

    rank: int = Field(16, ge=1, description="rank of A and B")
    alpha: int = Field(32, ge=1, description="B A is multiplied by alpha / rank")
    target_modules: tuple[str, ...] = Field(
        (), description="names of linear layers, such as q_proj; when empty, all except the output layer"
    )
    publish: Literal["merged", "adapter"] = Field(
        "merged", description="what the engines serve: the merged weights, or the initial weights with the adapter"
    )


class StepSettings(FiniteModel):
    """The computation of an optimiser step, for any training data."""

    workers: int = Field(2, ge=1, description="data-parallel ranks; the weights are sharded over them", json_schema_extra=FREE)
    resources: Resources = Field(
        {},
        description="resources of the Ray cluster that each rank takes, such as {learner: 1}: it is placed where they are",
        json_schema_extra=FREE | acts_if("ray.address"),
    )
    threads_per_worker: int = Field(1, ge=1, description="CPU threads of one worker's tensor operations", json_schema_extra=FREE)
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto",
        description="auto uses CUDA if the Ray cluster has GPUs; each worker then needs one",
        json_schema_extra=FREE,
    )
    dtype: Literal["auto", "float32", "bfloat16", "float64"] = Field(
        "float32",
        description="dtype of the forward and backward pass; bfloat16 keeps float32 master weights; auto is bfloat16 on GPUs and "
        "on processors that compute in it (avx512_bf16, amx_bf16), and float32 on others",
    )
    timeout_s: float = Field(
        14400.0,
        gt=0,
        description="maximum seconds of an update, or of a block of a warm start; after that a rank hangs, and the services of a "
        "training are started again",
        json_schema_extra=FREE,
    )
    attention: Literal["auto", "tree", "paths"] = Field(
        "auto",
        description="tree: messages that trajectories share are forwarded once; paths: each path is a sequence of its own, for "
        "models that are not exact otherwise; auto: tree where a small model of the same kind proves it exact, else paths",
    )
    activation_checkpointing: bool = Field(
        False,
        description="a layer keeps only its input and is forwarded again in the backward pass: less memory, more time",
        json_schema_extra=FREE,
    )
    compile_layers: bool = Field(
        False,
        description="let torch compile the decoder layers, for which it needs a C++ compiler: on a GPU a step takes two thirds "
        "of the time and less memory, and the first one some seconds more",
    )
    deterministic: bool = Field(
        False, description="use only operations that give the same bits each time; an operation without such a form ends the run"
    )
    betas: tuple[float, float] = Field(
        (0.9, 0.95), description="decay per step of AdamW's running means of the gradient and of its square"
    )
    eps: float = Field(1e-8, gt=0, description="what AdamW adds to the square root by which it divides")
    weight_decay: float = Field(0.01, ge=0, description="share of a weight, times lr, that AdamW subtracts per step")
    grad_clip: float = Field(1.0, gt=0, description="global norm above which the gradient is scaled down")
    lora: LoraSettings | None = Field(None, description="train adapters on the policy (and the critic) instead of all weights")
    tokens_per_micro_batch: int = Field(
        8192,
        ge=1,
        description="unique tokens of one forward pass; an action whose path is longer has a pass of its own",
        json_schema_extra=FREE,
    )

    @model_validator(mode="after")
    def _averages(self) -> Self:
        if not all(0 <= beta < 1 for beta in self.betas):  # Adam divides by 1 - beta
            raise ValueError(f"betas are {self.betas}, but each must be at least 0 and below 1")
        return self

    def passes_dtype(self, cuda: bool) -> Literal["float32", "bfloat16", "float64"]:
        """Return `dtype` where `auto` is decided, for GPUs or this machine's processor."""
        if self.dtype == "auto":
            return "bfloat16" if cuda or computes_in_bfloat16() else "float32"
        return self.dtype


_FALLING, _WITH_KL = acts_if("lr_schedule", "linear", "cosine"), acts_if("kl_coefficient")


class UpdateSettings(StepSettings):
    """The optimiser steps of a batch: by default one, strictly on-policy."""

    offload: tuple[Literal["optimizer", "reference"], ...] = Field(
        (),
        description="what is kept in host memory instead of on the GPU: optimizer (trained weights, gradients and moments, "
        "with the optimiser step on the CPU), reference (its weights)",
        json_schema_extra=FREE | acts_if("device", "auto", "cuda"),
    )
    loss: LossSettings = Field(PolicyGradientLoss(), description="what a step makes smaller: see docs/learning.md")
    epochs: int = Field(1, ge=1, description="passes over a batch")
    minibatches: int = Field(1, ge=1, description="optimiser steps per pass, each on its share of the trajectories")
    aggregation: Literal["token_mean", "action_mean", "trajectory_mean", "fixed_length"] = Field(
        "token_mean", description="how tokens are weighted: see docs/learning.md"
    )
    fixed_length: int | None = Field(
        None,
        ge=1,
        description="tokens by which a trajectory's sum is divided",
        json_schema_extra=acts_if("aggregation", "fixed_length"),
    )
    router_replay: bool = Field(
        False,
        description="for a mixture of experts: the update takes the experts that the engine chose for each token, which it then "
        "records (with agents whose tokens are the engine's own)",
    )
    tis: TisSettings | None = None
    ess_floor: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="the run stops once the effective sample size of three iterations in a row was a smaller share of the "
        "tokens than this (mismatch/ess_share)",
        json_schema_extra=FREE,
    )
    lr: float = Field(1e-6, gt=0, description="learning rate of AdamW, after the warm-up")
    lr_schedule: Literal["constant", "linear", "cosine"] = Field("constant", description="learning rate after the warm-up")
    lr_decay_steps: int | None = Field(
        None, ge=1, description="optimiser step at which linear and cosine reach lr_floor", json_schema_extra=_FALLING
    )
    lr_floor: float = Field(0.0, ge=0, lt=1, description="share of lr at which linear and cosine end", json_schema_extra=_FALLING)
    warmup_steps: int = Field(0, ge=0, description="optimiser steps over which the learning rate rises linearly to lr")
    kl_coefficient: float = Field(0.001, ge=0, description="weight of the KL to the initial policy; 0 loads no reference model")
    kl_estimator: Literal["k1", "k2", "k3"] = Field(
        "k3",
        description="estimator of each sampled token's KL: with d = logp_ref - logp, k1 is -d, k2 is d²/2, k3 is exp(d) - d - 1",
        json_schema_extra=_WITH_KL,
    )
    kl_in: Literal["loss", "reward"] = Field(
        "loss", description="a term of the loss, or a penalty on each step's reward", json_schema_extra=_WITH_KL
    )
    critic: CriticSettings | None = None

    @property
    def steps_per_batch(self) -> int:
        return self.epochs * self.minibatches

    @property
    def old(self) -> Literal["trainer", "engine", "interpolated"]:
        """Return whose log-probs the ratio is taken against."""
        return self.loss.old if isinstance(self.loss, RatioLoss) else "trainer"

    @property
    def teacher(self) -> DistillLoss | None:
        """Return the loss that has a teacher."""
        return self.loss if isinstance(self.loss, DistillLoss) else None

    @property
    def masks_trajectories(self) -> bool:
        return self.tis is not None and self.tis.kind == "mask_trajectories"

    @property
    def kl_in_reward(self) -> bool:
        return self.kl_coefficient > 0 and self.kl_in == "reward"

    @model_validator(mode="after")
    def _steps(self) -> Self:
        if self.steps_per_batch > 1 and isinstance(self.loss, PolicyGradientLoss | DistillLoss):
            raise ValueError(f"{self.loss.kind} takes one step per batch: set epochs and minibatches to 1, or loss.kind to ppo")
        if self.critic and self.critic.value_clip is not None and self.steps_per_batch == 1:
            raise ValueError(
                "critic.value_clip has no effect with one step per batch; leave it out, or raise epochs or minibatches"
            )
        return self

    @model_validator(mode="after")
    def _replays(self) -> Self:
        if self.router_replay and self.compile_layers:
            raise ValueError("router_replay steps into layers, which compile_layers forbids; set one of them to false")
        return self

    @model_validator(mode="after")
    def _corrects(self) -> Self:
        if self.tis and self.old == "engine":
            raise ValueError("update.tis and loss.old: engine both correct for the engine's log-probs; set only one")
        if self.old == "interpolated" and self.tis is None:
            raise ValueError(
                "loss.old: interpolated leaves the step from the engine's policy to the old one to update.tis; set "
                "update.tis.kind, for example to mask_tokens"
            )
        if self.old == "interpolated" and (self.masks_trajectories or self.kl_in_reward):
            why = "kl_in reward" if self.kl_in_reward else "update.tis.kind mask_trajectories"
            raise ValueError(f"loss.old: interpolated saves a pass that {why} needs; set loss.old to trainer")
        return self

    @model_validator(mode="after")
    def _aggregates(self) -> Self:
        if self.aggregation == "fixed_length" and self.fixed_length is None:
            raise ValueError("aggregation fixed_length needs the number fixed_length; set it")
        return self

    @model_validator(mode="after")
    def _regularises(self) -> Self:
        if self.kl_coefficient > 0 and self.kl_in == "loss" and self.kl_estimator == "k1":
            raise ValueError("k1 in the loss only adds noise, its gradient is 0 on average; use k2, k3, or kl_in reward")
        return self

    @model_validator(mode="after")
    def _offloads(self) -> Self:
        if "reference" in self.offload and self.lora:
            raise ValueError("offload of the reference has no effect with lora: it is the policy without adapters; leave it out")
        if "reference" in self.offload and self.kl_coefficient == 0:
            raise ValueError("offload of the reference has no effect with kl_coefficient 0, which loads none; leave it out")
        return self

    @model_validator(mode="after")
    def _schedules(self) -> Self:
        if self.lr_schedule != "constant" and (self.lr_decay_steps is None or self.lr_decay_steps <= self.warmup_steps):
            raise ValueError(f"lr_schedule {self.lr_schedule} needs lr_decay_steps, a number above warmup_steps")
        return self
