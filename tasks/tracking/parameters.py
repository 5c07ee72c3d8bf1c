"""The settings that are parameters of a run in MLflow: those by which runs are compared. All are in its `config.yaml`."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow.compute as pc

from nbrl.infra.parse import json_value
from nbrl.infra.storage import Storage
from nbrl.infra.tracking import Tracking
from nbrl.infra.tracking_traces import Dataset
from nbrl.tasks.environments import stored
from nbrl.tasks.layout.runs import RunLayout
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.decisive import chosen
from nbrl.tasks.runs.epochs import first_and_newest, without_passwords
from nbrl.tasks.runs.run import Run

# Those that every run has, so that runs with defaults can be compared with others.
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
RUN_ID, DIGEST = "nbrl.run_id", "nbrl.digest"


def parameters(config: RunConfig) -> dict[str, object]:
    """Return the parameters of a run: every setting that decides a result and is not at its default, KEYS as far as they are
    set, and the kind and weight of each environment. Passwords in addresses are `***`.
    """
    tree = config.model_dump(mode="json")
    found = chosen(config) | {key: value for key in KEYS if (value := _at(tree, key)) is not None}
    for name, environment in config.environments.items():
        found |= {f"environments.{name}.kind": environment.kind, f"environments.{name}.weight": environment.weight}
    return {key: json_value(without_passwords(json.dumps(value, ensure_ascii=False))) for key, value in found.items()}


def _at(tree: Mapping[str, Any], key: str) -> object:
    """Return the value of a dotted key; None where a section of it is not set."""
    value: Any = tree
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def log_datasets(storage: Storage, run: Run, names: list[str], tracking: Tracking) -> None:
    """Log the questions of the environments with these names, unless MLflow has all that are there."""
    logged = tracking.datasets.names()
    if not {_name(name, "held_out") for name in names} <= logged:
        tracking.datasets.log([each for each in _datasets(storage, run) if each.name not in logged])


def _datasets(storage: Storage, run: Run) -> Iterator[Dataset]:
    """Yield the datasets. A split of several environments is one table; each is a dataset with its digest."""
    layout = run.layout.data
    digests = stored.digests(storage, layout) or {}
    for split in stored.SPLITS:
        table, key = stored.read(storage, layout, split), layout.split(split)
        for counted in pc.value_counts(table["environment"]).to_pylist():
            yield Dataset(
                name=_name(counted["values"], split),
                digest=digests[key],
                uri=storage.uri(key),
                rows=counted["counts"],
                context="training" if split == "train" else "evaluation",
            )


def _name(environment: str, split: str) -> str:
    return f"{environment}/{split}"


def identity(run: Run) -> dict[str, str]:
    """Return the tags by which a run is found again."""
    return {RUN_ID: run.run_id, DIGEST: run.config_digest}


def facts(storage: Storage, layout: RunLayout, recipe: str, model: str) -> tuple[dict[str, str], float | None]:
    """Return tags about a run or evaluation and its newest start, without unknown ones, and the time of its first start.

    The time is in seconds since 1970, and None if it is unknown.
    """
    tags = {"nbrl.recipe": recipe, "nbrl.model": model, "mlflow.source.type": "LOCAL"}
    tags["mlflow.source.name"] = "nbrl"
    if (starts := first_and_newest(storage, layout)) is None:
        return tags, None
    first, newest = starts
    tags |= {
        "mlflow.user": newest.user,
        "mlflow.source.name": newest.command.partition(" ")[0] or "nbrl",
        "mlflow.source.git.commit": newest.commit,
        "nbrl.version": newest.version,
        "nbrl.host": newest.host,
        "nbrl.command": newest.command,
    }
    return {name: value for name, value in tags.items() if value}, first.started
