"""Batch evaluation of a policy or of a run's checkpoint on the recipe's held-out questions."""

from pathlib import Path

from prefect import flow
from prefect.artifacts import acreate_table_artifact

from flows.watch import Watch
from infra.storage import Storage
from tasks import data
from tasks.config import RunConfig
from tasks.errors import ConfigError
from tasks.evaluate import evaluate_into
from tasks.scope import Artifact, derive_seed
from tasks.start import evaluation_parts

VERSION = "evaluation"


@flow(name="evaluate", validate_parameters=False, flow_run_name="{name}")
async def evaluate(config: RunConfig, model: Path, name: str, watch: Watch) -> Artifact:
    """Trajectories, rewards and metrics below `evaluations/<name>`; nothing is learned."""
    folder = f"evaluations/{name}"
    if Storage(config.storage).list(folder):
        raise ConfigError(f"an evaluation named {name!r} exists in {config.storage.root}; choose another --name")
    data.write(config.data, Storage(config.storage), f"{folder}/data")
    async with evaluation_parts(config, model, VERSION, f"{folder}/data/corpus.parquet", watch) as parts:
        watch.begin(f"evaluating {model}")
        questions, seed = f"{folder}/data/held_out.parquet", derive_seed(config.seed, "evaluate")
        result = await watch.node(
            "evaluate", evaluate_into(parts, folder, questions, seed, VERSION), parts.evaluation_size, parts.follow
        )
    rows = [{"metric": key, "value": value} for key, value in sorted(result.metrics.items())]
    await acreate_table_artifact(rows, key="evaluation", description=name)
    return result
