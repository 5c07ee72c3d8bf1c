"""Checks the settings of a run that learns from recorded sessions of agents elsewhere."""

from nbrl.tasks.environments.kinds.recorded import RecordedEnvironment
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.runs.config import RunConfig


def check_recorded(config: RunConfig) -> None:
    """Raises ConfigError for settings that cannot work with an environment of the kind recorded."""
    names = [name for name, each in config.environments.items() if isinstance(each, RecordedEnvironment)]
    if not names:
        return
    name, others = names[0], {other: weight for other, weight in config.weights.items() if other != names[0]}
    if len(names) > 1:
        raise ConfigError(f"environments.{names[1]} is recorded, and so is {name}; a run has one of them, leave the other out")
    if trained := [other for other, weight in others.items() if weight]:
        raise ConfigError(
            f"environments.{name} is recorded, and a run learns from nothing beside it; set environments.{trained[0]}.weight "
            "to 0, which is to evaluate on it only"
        )
    if not others:
        raise ConfigError(
            f"environments.{name} is recorded and has no held-out questions; name another environment with weight 0, to evaluate "
            "the policy on"
        )
    if config.pipeline.lag > 1:
        raise ConfigError(
            f"pipeline.lag is {config.pipeline.lag}, and environments.{name} is recorded, whose batches are made one after the "
            "other; set it to 0 or 1"
        )
    for setting, value in (
        ("select.retire_at", config.select.retire_at),
        ("select.pools", config.select.pools),
        ("rollout.horizon", config.rollout.horizon),
        ("pipeline.stream", config.pipeline.stream or None),
        ("update.router_replay", config.update.router_replay or None),
    ):
        if value is not None:
            raise ConfigError(f"{setting} has no effect on recorded sessions (environments.{name}); leave it out")
