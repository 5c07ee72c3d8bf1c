"""Settings of rollouts beside updates."""

from typing import Literal

from pydantic import Field

from nbrl.infra.closed import ClosedModel, acts_if


class PipelineSettings(ClosedModel):
    """Rollouts beside updates."""

    lag: int = Field(
        0,
        ge=0,
        le=16,
        description="by how many iterations the weights that sample a batch are older than those that learn from it, always, "
        "whatever takes how long. With 1, the next batch is sampled while this one is learned from; with more, which needs "
        "update.lora.publish adapter or stream, so many batches are sampled at once. update.tis or update.loss.old must correct "
        "for it",
    )
    stream: bool = Field(
        False,
        description="rollouts never stop: a batch is made of groups that have finished, and the others go on through updates; "
        "lag is then a bound on the age of the weights that sampled any action, in updates",
        json_schema_extra=acts_if("lag"),
    )
    admit: Literal["order", "quota", "finish"] = Field(
        "quota",
        description="which finished groups fill a batch: `order`, the next ones in the order of the prompts; `finish`, those "
        "that finished first, so that groups which take too long become older than lag and are not learned from; `quota`, those "
        "that finished first and all that would become too old, for which the batch waits, so that every group is learned from",
        json_schema_extra=acts_if("stream"),
    )
    in_flight: int | None = Field(
        None,
        ge=1,
        description="groups that are sampled or wait to be learned from at once, from rollout.prompts to lag times as many; half "
        "of (lag + 1) batches when not set",
        json_schema_extra=acts_if("stream"),
    )
    mixed: int | None = Field(
        None,
        ge=0,
        description="updates that may come in the middle of a trajectory, whose actions are then sampled from several weights; "
        "0: an update waits for all trajectories that have begun, and no other begins meanwhile. As many as come when not set. "
        "With update.lora.publish adapter a trajectory keeps the weights that it began with",
        json_schema_extra=acts_if("stream"),
    )
    uncorrected: bool = Field(
        False,
        description="learn from what older weights sampled as if the newest had, as the control of an experiment",
        json_schema_extra=acts_if("lag"),
    )
