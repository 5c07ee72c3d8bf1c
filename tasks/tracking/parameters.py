"""Which settings are parameters of a run in MLflow: those by which runs are compared. The rest is in its `config.yaml`."""

from collections.abc import Mapping
from typing import Any

from nbrl.tasks.runs.config import RunConfig

KEYS = (
    "seed",
    "iterations",
    "policy.path",
    "policy.revision",
    "agent.max_steps",
    "agent.context_tokens",
    "agent.action_tokens",
    "agent.trim",
    "sampling.temperature",
    "sampling.top_p",
    "rollout.prompts",
    "rollout.group_size",
    "reward.qa",
    "reward.format",
    "reward.execution",
    "reward.length",
    "select.drop_rate",
    "select.max_rounds",
    "advantage.estimator",
    "advantage.gamma",
    "update.loss.kind",
    "update.epochs",
    "update.minibatches",
    "update.aggregation",
    "update.lr",
    "update.lr_schedule",
    "update.warmup_steps",
    "update.grad_clip",
    "update.kl_coefficient",
    "update.lora.rank",
    "update.dtype",
    "evaluate.every",
    "evaluate.samples",
    "evaluate.questions",
)


def parameters(config: RunConfig) -> dict[str, object]:
    """The parameters of a run: KEYS as far as they are set, and the kind and weight of each environment."""
    tree = config.model_dump(mode="json")
    chosen = {key: value for key in KEYS if (value := _at(tree, key)) is not None}
    for name, environment in config.environments.items():
        chosen |= {f"environments.{name}.kind": environment.kind, f"environments.{name}.weight": environment.weight}
    return chosen


def _at(tree: Mapping[str, Any], key: str) -> object:
    """The value of a dotted key; None where a section of it is not set."""
    value: Any = tree
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value
