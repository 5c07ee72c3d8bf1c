"""What a run would do, in words and as its resolved configuration."""

import yaml

from tasks.config import RunConfig


def plan(config: RunConfig) -> str:
    """The resolved YAML under a summary that names every quantity a person budgets by."""
    rollout, update = config.rollout, config.update
    batch = rollout.prompts * rollout.group_size
    kl = "no KL, no reference model"
    if update.kl_coefficient:
        kl = f"{update.kl_estimator} KL × {update.kl_coefficient:g} to the initial policy in the {update.kl_in}"
    lines = [
        f"# {config.name}: {config.iterations} iterations from {config.policy.path}, configuration {config.digest()[:12]}",
        f"# an iteration: {rollout.prompts} prompts × {rollout.group_size} = {batch} trajectories of at most "
        f"{config.agent.max_steps} steps, up to {config.select.max_rounds} rounds",
        f"# rollout: {config.engine.count} engine(s), {rollout.hosts} sandbox host(s) × {rollout.episodes_per_host} episodes, "
        f"{config.sandbox.provisioner} kernels",
        f"# update: {update.workers} FSDP2 workers, {config.advantage.estimator}, {update.loss.kind}, "
        f"{update.steps_per_batch} step(s) a batch, lr {update.lr:g}, {kl}",
        f"# storage: {config.storage.root}; servers' state: {config.home}",
    ]
    return "\n".join(lines) + "\n" + yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)
