"""Settings of a warm start: its model, its demonstrations and its steps."""

import math
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from nbrl.infra.closed import FREE, FiniteModel, acts_if
from nbrl.infra.ray_cluster import RaySettings
from nbrl.tasks.layout.runs import NAME
from nbrl.tasks.learner.settings import StepSettings, UpdateSettings
from nbrl.tasks.warmstart.fresh.tokenizer import FreshModel
from nbrl.tasks.warmstart.sources.chat import ChatDemonstrations
from nbrl.tasks.warmstart.sources.gym import GymDemonstrations, SumsDemonstrations
from nbrl.tasks.warmstart.sources.own import OwnDemonstrations
from nbrl.tasks.warmstart.sources.recorded import RecordedDemonstrations
from nbrl.tasks.warmstart.sources.successes import RunDemonstrations
from nbrl.tasks.warmstart.sources.world import WorldDemonstrations

Demonstrations = Annotated[
    WorldDemonstrations
    | SumsDemonstrations
    | GymDemonstrations
    | RecordedDemonstrations
    | ChatDemonstrations
    | OwnDemonstrations
    | RunDemonstrations,
    Field(discriminator="kind"),
]
OF_A_RUN = "runs/"  # before the name of a run as a training, which a recipe may have too


class Phase(FiniteModel):
    """Demonstrations that are learnt together, mixed at random."""

    epochs: float = Field(1.0, gt=0, le=1000, description="passes over the demonstrations; a part of one takes a part of them")
    demonstrations: dict[str, Demonstrations] = Field(min_length=1, description="what is demonstrated, by names of your own")


class SupervisedSettings(StepSettings):
    """The optimiser steps: the loss is the mean of -log pi over the tokens of all actions of a batch."""

    weight_decay: float = Field(0.0, ge=0, description="share of a weight, times lr, that AdamW subtracts per step")
    lr: float = Field(2e-4, gt=0, description="highest learning rate of AdamW")
    warmup: float = Field(0.05, ge=0, lt=1, description="share of the steps during which the learning rate rises linearly")
    lr_schedule: Literal["constant", "linear", "cosine"] = Field("cosine", description="learning rate after that")
    lr_floor: float = Field(
        0.1,
        ge=0,
        lt=1,
        description="share of lr at which linear and cosine end",
        json_schema_extra=acts_if("lr_schedule", "linear", "cosine"),
    )

    @model_validator(mode="after")
    def _merged(self) -> Self:
        if self.lora is not None and self.lora.publish != "merged":
            raise ValueError("lora.publish has no effect in a warm start, which writes merged weights; leave it out")
        return self

    def for_learner(self, steps: int) -> UpdateSettings:
        """Return the learner's settings for so many steps in all. Its loss is the policy gradient's, with advantages of 1."""
        shared = self.model_dump(include=set(StepSettings.model_fields))
        rising = min(round(self.warmup * steps), steps - 1)
        falls = self.lr_schedule != "constant" and steps > 1
        schedule = {"lr_schedule": self.lr_schedule, "lr_decay_steps": steps, "lr_floor": self.lr_floor} if falls else {}
        return UpdateSettings.model_validate(
            {**shared, "lr": self.lr, "warmup_steps": rising, "kl_coefficient": 0.0, "aggregation": "token_mean", **schedule}
        )


class WarmstartSettings(FiniteModel):
    """Phases are learnt one after another. `start` or `fresh` says from what."""

    seed: int = Field(0, ge=0, le=2**31, description="seed of every random draw")
    start: str | None = Field(
        None,
        min_length=1,
        description="model to start from: a Hugging Face folder, owner/name on the hub, or RUN or RUN@N of the storage",
    )
    fresh: FreshModel | None = Field(None, description="or else a tiny model that is made from nothing")
    training: str = Field(
        min_length=1,
        description="the training that follows, a recipe, or runs/NAME for a run of the storage: the policy learns to act as its "
        "agent",
    )
    phases: dict[str, Phase] = Field(min_length=1, description="what is learnt one after another, by names of your own")
    batch: int = Field(16, ge=1, description="demonstrations per optimiser step")
    checkpoint_steps: int = Field(
        20,
        ge=1,
        description="optimiser steps from one line of progress, and one state to continue from, to the next",
    )
    update: SupervisedSettings = SupervisedSettings()
    dtype: Literal["float32", "stored"] = Field(
        "float32", description="numbers of the weights that are written: float32, or stored, as in the model it starts from"
    )
    ray: RaySettings = Field(RaySettings(), json_schema_extra=FREE)

    @field_validator("phases", mode="before")
    @classmethod
    def _left(cls, given: object) -> object:
        """Leave out phases that are null, so that `--set` can leave out one of a recipe."""
        return {name: phase for name, phase in given.items() if phase is not None} if isinstance(given, dict) else given

    @model_validator(mode="after")
    def _one_start(self) -> Self:
        if self.start is None and self.fresh is None:
            raise ValueError("name the model to start from with --from (or `start`); only a recipe with `fresh` makes one")
        if self.start is not None and self.fresh is not None:
            raise ValueError("the recipe describes a `fresh` model and names one to start from (`start`); leave one of them out")
        return self

    @property
    def training_run(self) -> str | None:
        """Return the run of the storage that `training` names; None if it names a recipe."""
        run = self.training.removeprefix(OF_A_RUN)
        return run if run != self.training and NAME.fullmatch(run) else None

    @property
    def sources(self) -> dict[str, Demonstrations]:
        """Return every source by its place in the settings."""
        return {
            f"phases.{name}.demonstrations.{each}": source
            for name, phase in self.phases.items()
            for each, source in phase.demonstrations.items()
        }

    def steps(self, demonstrations: int, epochs: float) -> int:
        """Return the number of optimiser steps of a phase with so many demonstrations."""
        return max(1, math.ceil(epochs * demonstrations / self.batch))
