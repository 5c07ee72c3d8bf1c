"""Describes what a run would do, in words and as its resolved configuration."""

import math
from pathlib import Path

import yaml

from nbrl.tasks.model_folder.safetensors_files import FLOATS, weights
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.decisive import digest

UNITS = ("B", "kB", "MB", "GB", "TB")
STATE_BYTES = 12  # per trained number in float32: the number and AdamW's two moments


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
        f"{config.agent.max_steps} steps, up to {config.select.max_rounds} rounds",
        f"# rollout: {config.engine.count} engine(s), {rollout.runners} runner(s) × {rollout.episodes_per_runner} episodes, "
        f"{config.sandbox.provisioner} kernels",
        f"# update: {update.workers} FSDP2 workers, {config.advantage.estimator}, {update.loss.kind}, "
        f"{update.steps_per_batch} step(s) per batch, lr {update.lr:g}, {kl}",
        f"# storage: {config.storage.root}; servers' state: {config.home}",
        *(f"# disk: {text}" for text in [disk(config)] if text),
    ]
    return "\n".join(lines) + "\n" + yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)


def disk(config: RunConfig) -> str:
    """The disk space of the run's checkpoints in words; empty if the model's files are not on this machine."""
    folder = Path(config.policy.path)
    if not folder.is_dir():
        return ""
    tensors, keep = weights(folder).values(), config.checkpoints
    trained = 0 if config.update.lora else sum(info.elements for info in tensors)
    float32 = config.published_dtype == "float32"
    model = sum(info.elements * (4 if float32 else FLOATS.get(info.dtype, 4)) for info in tensors)
    state = STATE_BYTES * trained * (1 if config.update.critic is None else 2)
    recent = config.iterations if keep.keep_last is None else min(keep.keep_last, config.iterations)
    others = min(config.iterations - recent, keep.keep_best + (config.iterations // keep.keep_every if keep.keep_every else 0))
    total = recent * (model + state) + others * (model + state if keep.state == "all" else model)
    newest = model + state if recent < config.iterations else 0  # it is written before an older one is deleted
    more = ", and what the adapters take" if config.update.lora else ""
    return f"a checkpoint takes about {_bytes(model + state)}{more}; those that stay take at most {_bytes(total + newest)}"


def _bytes(size: float) -> str:
    exponent = min(len(UNITS) - 1, int(math.log10(max(size, 1)) // 3))
    return f"{size / 1000**exponent:.3g} {UNITS[exponent]}"
