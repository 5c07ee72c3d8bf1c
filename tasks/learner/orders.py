"""Work orders to the learner and their results. All paths are local."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from nbrl.tasks.advantage.settings import AdvantageSettings

CANARY_TOKENS = 256


class UpdateOrder(BaseModel):
    """The optimiser steps of one batch. The order is a pure function of its inputs: the same order gives the same checkpoint.

    `trajectories`: Parquet in agent.trajectory.SCHEMA. `advantages`: Parquet with columns trajectory (string), step (int32) and
    advantage (float64), one row for every sampled step of every trajectory to train on; other trajectories are ignored.
    `estimator`: if given, that table has the column reward instead of advantage, and the learner applies this estimator; a
    trajectory in which nothing was sampled may have one row with only its name, and then counts in its group.
    `seed` decides how trajectories are shuffled into minibatches.
    `initial`: the digest of the initial model, which is where the chain of checkpoints begins.
    `checkpoint_in`: the folder of an earlier result, or None for the initial model. `checkpoint_out`: the folder to make.
    `dtype`: numbers of the exported weights: float32, or those of the initial model's files.
    `steps`: optimiser steps, each on its share of the trajectories; None takes `epochs` and `minibatches` of the settings.
    `canary_token_ids`: the sequence on which the new weights are proved; None uses the path of the first sampled action.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    iteration: int = Field(ge=0)
    seed: int = Field(0, ge=0)
    trajectories: str
    advantages: str
    estimator: AdvantageSettings | None = None
    initial: str = ""
    checkpoint_in: str | None = None
    checkpoint_out: str
    dtype: Literal["float32", "stored"] = "stored"
    steps: int | None = Field(None, ge=1)
    canary_token_ids: list[int] | None = Field(None, min_length=2)


class UpdateResult(BaseModel):
    """`canary_logprobs[i]` is the log-prob of `canary_token_ids[i + 1]` given the ids before it, under the new weights.

    `order` is the digest of the order that was carried out.
    `skipped` says why an optimiser step was not taken, else it is empty; without any step the checkpoint has the old weights.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")

    iteration: int
    order: str = ""
    metrics: dict[str, float]
    checkpoint: str
    canary_token_ids: list[int]
    canary_logprobs: list[float]
    skipped: str = ""
