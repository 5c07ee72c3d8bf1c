"""Describes what a run would do, in words and as its resolved configuration."""

import os

import yaml

from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.decisive import digest
from nbrl.tasks.runs.estimate import disk, memory
from nbrl.tasks.runs.gpu_memory import table


def plan(config: RunConfig) -> str:
    """The resolved YAML under a summary of the quantities that determine time, memory and disk."""
    rollout, update = config.rollout, config.update
    batch = rollout.prompts * rollout.group_size
    kl = "no KL, no reference model"
    if update.kl_coefficient:
        kl = f"{update.kl_estimator} KL × {update.kl_coefficient:g} to the initial policy in the {update.kl_in}"
    lines = [
        f"# {config.name}: {config.iterations} iterations from {config.policy.path}, configuration {digest(config)[:12]}",
        f"# an iteration: {rollout.prompts} prompts × {rollout.group_size} = {batch} trajectories of at most "
        f"{_steps(config)} steps, up to {config.select.max_rounds} rounds",
        f"# rollout: {config.engine.count} engine(s), {rollout.runners} runner(s) × {rollout.episodes_per_runner} episodes"
        f"{f' for each of {config.pipeline.lag} batches at once' if config.pipeline.lag > 1 else ''}, "
        f"{config.sandbox.provisioner} kernels",
        f"# update: {update.workers} FSDP2 workers, {config.advantage.estimator}, {update.loss.kind}, "
        f"{update.steps_per_batch} step(s) per batch, lr {update.lr:g}, {kl}",
        *([f"# pipeline: {_pipeline(config)}"] if config.pipeline.lag else []),
        f"# storage: {config.storage.root}; servers' state: {config.home}",
        *(f"# memory: {text}" for text in [memory(config)] if text),
        *(f"# memory of a GPU, {text}" for text in table(config)),
        *(f"# disk: {text}" for text in [disk(config)] if text),
    ]
    return "\n".join(lines) + "\n" + yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)


def _steps(config: RunConfig) -> str:
    """Steps that an episode may take, of all phases of a curriculum."""
    horizon = config.rollout.horizon
    return ", ".join(map(str, horizon.steps)) if horizon else str(config.agent.max_steps)


def _pipeline(config: RunConfig) -> str:
    """What runs at the same time, and what both need."""
    lag = config.pipeline.lag
    text = "the next batch is" if lag == 1 else f"the next {lag} batches are, at once and each by runners of its own,"
    text += " sampled while this one is learned from"
    if config.ray.address is None and config.engine.resolved_device == "cpu":
        ranks, processors = config.update.workers * config.update.threads_per_worker, len(os.sched_getaffinity(0))
        text += (
            f"; engines, kernels and {ranks} thread(s) of the update share this machine's {processors} processor(s), so that "
            "only what waits is won"
        )
    return text
