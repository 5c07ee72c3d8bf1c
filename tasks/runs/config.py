"""RunConfig: the settings of all folders, composed into one model."""

import math
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from nbrl.agent.policy import Sampling
from nbrl.agent.settings import AgentSettings
from nbrl.infra.closed import FREE, ClosedModel
from nbrl.infra.engine.settings import EngineSettings
from nbrl.infra.gpu import gpus
from nbrl.infra.home import HOME, storage_of
from nbrl.infra.node_cache import NodeSettings
from nbrl.infra.parse import as_settings
from nbrl.infra.ray_cluster import RaySettings
from nbrl.infra.storage import StorageSettings
from nbrl.infra.tracking import TrackingSettings
from nbrl.sandbox.settings import SandboxSettings
from nbrl.tasks.advantage.settings import AdvantageSettings
from nbrl.tasks.environments.kinds.recorded import RecordedEnvironment
from nbrl.tasks.environments.settings import Environments, unusable
from nbrl.tasks.learner.proof import Mismatch
from nbrl.tasks.learner.settings import UpdateSettings
from nbrl.tasks.model_folder.source import PolicySettings
from nbrl.tasks.reward.settings import RewardSettings
from nbrl.tasks.rollout.settings import RolloutSettings
from nbrl.tasks.runs.pipeline_settings import PipelineSettings
from nbrl.tasks.selection.settings import SelectSettings

# Mismatches of healthy engines, rounded up. In 16 bits those of a sharp policy come from few tokens, so that they wander by more
# than a tolerance from one step to the next: means from 0.0003 to 0.009, and 99th percentiles from 0.005 to 0.22 in one run.
FLOAT32_NATS, BFLOAT16_NATS = Mismatch(mean=1e-4, high=1e-3), Mismatch(mean=1e-2, high=1e-1)


class PublishSettings(ClosedModel):
    """The way and the dtype in which engines get the weights, and the tolerance of engine and trainer then."""

    via: Literal["storage", "broadcast"] = Field(
        "storage",
        description="how new weights reach the engines: they load the checkpoint from the storage, or the learner sends them, "
        "over NCCL between GPUs and gloo otherwise; the checkpoint is stored either way",
        json_schema_extra=FREE,
    )
    dtype: Literal["auto", "float32", "stored"] = Field(
        "auto",
        description="numbers of the weights that a step publishes: float32, or stored, as in the policy's folder; auto is "
        "float32 where the engine computes in it, as on a CPU. Of a small step, weights in bfloat16 keep next to nothing",
    )
    tolerance: float = Field(
        3.0,
        ge=1,
        description="the log-probabilities of engine and trainer may differ by so many times what they differed by before the "
        "step, in the mean and in the 99th percentile; beyond it the run ends",
        json_schema_extra=FREE,
    )


class EvaluateSettings(ClosedModel):
    """Held-out evaluation: before the first iteration, every `every` iterations (0: never between), and after the last."""

    every: int = Field(
        0,
        ge=0,
        description="iterations from one evaluation to the next; 0: only before the first and after the last",
        json_schema_extra=FREE,
    )
    samples: int = Field(1, ge=1, le=100, description="trajectories per question; scores are means over all of them")
    questions: int | None = Field(
        None, ge=1, description="number of held-out questions of each environment, taken from the first; all when not set"
    )
    mode: Literal["agent", "direct", "vote"] = Field(
        "agent",
        description="agent: the notebook agent answers; direct: the model answers at once, without a notebook; vote: as agent, "
        "and a question's score is that of the answer that most of its samples give",
    )
    sampling: Sampling = Sampling()

    @model_validator(mode="after")
    def _votes(self) -> "EvaluateSettings":
        if self.mode == "vote" and self.samples < 2:
            raise ValueError("mode vote needs samples of 2 or more: one sample alone wins every vote")
        return self


class CheckpointSettings(ClosedModel):
    """The checkpoints that stay on the storage. The newest, and those in use by an evaluation, always do."""

    keep_last: int | None = Field(3, ge=1, description="how many of the newest checkpoints stay; all when not set")
    keep_every: int = Field(0, ge=0, description="checkpoints after each multiple of so many updates stay too; 0: none does")
    keep_best: int = Field(1, ge=0, description="so many checkpoints with the highest held-out success stay too")
    state: Literal["recent", "all"] = Field(
        "recent",
        description="which kept checkpoints keep the optimiser's state, to train on from them: those of keep_last, or all",
    )
    state_every: int = Field(
        1,
        ge=1,
        description="updates from one checkpoint with the optimiser's state (12 bytes a weight) to the next; a run that goes on "
        "from one without repeats the updates since",
    )


class RecordSettings(ClosedModel):
    """The data of a finished iteration in MLflow besides its metrics."""

    traces: int = Field(
        2,
        ge=0,
        le=100,
        description="trajectories logged as traces per iteration and per held-out evaluation, right and wrong ones in turn",
    )


class RunConfig(ClosedModel):
    """All settings of a run. An unknown key is an error."""

    name: str = Field("run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="the recipe's name", json_schema_extra=FREE)
    seed: int = Field(0, description="seed of every random draw of the run")
    iterations: int = Field(
        ge=0,
        description="iterations of the run in total; a higher number continues a finished run",
        json_schema_extra=FREE,
    )
    restarts: int = Field(
        3,
        ge=0,
        description="how often in a row, without an iteration finished between, all services are started again after one failed",
        json_schema_extra=FREE,
    )
    home: str = Field(HOME, description="folder of the storage, and of the local servers' state and logs", json_schema_extra=FREE)
    policy: PolicySettings
    environments: Environments = Field(description="what is asked, by name: see docs/environments.md")
    agent: AgentSettings = AgentSettings()
    sampling: Sampling = Sampling()
    rollout: RolloutSettings = RolloutSettings()
    reward: RewardSettings = RewardSettings()
    select: SelectSettings = SelectSettings()
    advantage: AdvantageSettings = AdvantageSettings()
    update: UpdateSettings = UpdateSettings()
    publish: PublishSettings = PublishSettings()
    pipeline: PipelineSettings = PipelineSettings()
    evaluate: EvaluateSettings = EvaluateSettings()
    checkpoints: CheckpointSettings = Field(CheckpointSettings(), json_schema_extra=FREE)
    record: RecordSettings = Field(RecordSettings(), json_schema_extra=FREE)
    engine: EngineSettings = EngineSettings()
    sandbox: SandboxSettings = SandboxSettings()
    ray: RaySettings = Field(RaySettings(), json_schema_extra=FREE)
    nodes: NodeSettings = Field(NodeSettings(), json_schema_extra=FREE)
    storage: StorageSettings = Field(StorageSettings(), json_schema_extra=FREE)
    tracking: TrackingSettings = Field(TrackingSettings(), json_schema_extra=FREE)

    @model_validator(mode="before")
    @classmethod
    def _sound(cls, given: Any) -> Any:
        return _at_home(as_settings(given))

    @model_validator(mode="after")
    def _sent(self) -> "RunConfig":
        if self.publish.via == "storage":
            return self
        if "quantization" in self.engine.extra_args:
            raise ValueError(
                "publish.via broadcast cannot quantise what it brings into an engine, as engine.extra_args.quantization asks; "
                "leave out one of them"
            )
        if self.engine.resolved_device == "cpu" and not self.engine.computes_in_float32:
            raise ValueError(
                "publish.via broadcast cannot lay out weights in bfloat16 as an engine on a CPU does after loading; set "
                "engine.dtype to float32, or publish.via to storage"
            )
        return self

    @field_validator("environments", mode="before")
    @classmethod
    def _left(cls, given: Any) -> Any:
        """Leave out environments that are null, so that a recipe or `--set` can leave out one of its base."""
        if not isinstance(given, dict):
            return given
        for name in given:
            if wrong := unusable(name):
                raise ValueError(wrong)
        left = {name: each for name, each in given.items() if each is not None}
        if not left:
            raise ValueError("no environment is left, so there is nothing to ask; name one: environments: {NAME: {kind: ...}}")
        return left

    @property
    def weights(self) -> dict[str, float]:
        """Return the weight of each environment."""
        return {name: environment.weight for name, environment in self.environments.items()}

    @property
    def recorded(self) -> RecordedEnvironment | None:
        """Return the environment whose batches agents elsewhere make, if the run learns from one."""
        return next((each for each in self.environments.values() if isinstance(each, RecordedEnvironment)), None)

    @property
    def groups_in_flight(self) -> int:
        """Return how many groups a stream samples, or has finished and not learned from, at once."""
        prompts, pipeline = self.rollout.prompts, self.pipeline
        return pipeline.in_flight or min(pipeline.lag * prompts, math.ceil((pipeline.lag + 1) * prompts / 2))

    @property
    def pools(self) -> int:
        """Return how many pools of runners a training has: one for each batch that is sampled at once, or one for a stream and
        one for evaluations beside it.
        """
        return 1 + bool(self.evaluate.every) if self.pipeline.stream else max(1, self.pipeline.lag)

    @property
    def published_dtype(self) -> Literal["float32", "stored"]:
        """Return the numbers of the weights that a step publishes: with fewer digits than the engine's, small steps are lost."""
        if self.publish.dtype == "auto":
            return "float32" if self.engine.computes_in_float32 else "stored"
        return self.publish.dtype

    @property
    def mismatch_floor(self) -> Mismatch:
        """Return a mismatch of engine and trainer that says nothing, whatever it was before a step."""
        # What `auto` becomes in a cluster is not known here.
        passes = "bfloat16" if self.update.dtype == "auto" and self.ray.address else self.update.passes_dtype(gpus() > 0)
        return (
            FLOAT32_NATS
            if passes != "bfloat16" and self.engine.computes_in_float32 and self.published_dtype == "float32"
            else BFLOAT16_NATS
        )

    @property
    def publishes_adapters(self) -> bool:
        """Return whether engines serve adapters beside the initial weights, instead of complete weights."""
        return self.update.lora is not None and self.update.lora.publish == "adapter"

    @property
    def learner_estimates(self) -> bool:
        """Return whether the learner computes the advantages: only it has values, the reference's log-probs and tokens."""
        return self.advantage.with_critic or self.advantage.per_ability or self.update.kl_in_reward


def _at_home(given: Any) -> Any:
    """Return the settings with the storage in the home, unless they name another."""
    if not isinstance(given, dict) or not isinstance(home := given.get("home"), str):
        return given
    storage = given.get("storage", {})
    return given | {"storage": {"root": storage_of(home)} | storage} if isinstance(storage, dict) else given
