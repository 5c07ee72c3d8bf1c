"""Batch evaluation of a policy or of a run's checkpoint on the recipe's held-out questions."""

from pathlib import Path

from prefect import flow
from prefect.artifacts import acreate_table_artifact

from nbrl.flows.watch import Watch
from nbrl.infra.storage import Storage
from nbrl.tasks.environments import sources
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.nodes.evaluate import evaluate_into
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.scope import Artifact
from nbrl.tasks.seeds import derive_seed
from nbrl.tasks.services.start import evaluation_services

VERSION = "evaluation"


@flow(name="evaluate", validate_parameters=False, flow_run_name="{name}")
async def evaluate(config: RunConfig, model: Path, name: str, watch: Watch) -> Artifact:
    """Trajectories, rewards and metrics below `evaluations/<name>`; nothing is learned."""
    folder = f"evaluations/{name}"
    if Storage(config.storage).list(folder):
        raise ConfigError(f"an evaluation named {name!r} exists in {config.storage.root}; choose another --name")
    sources.write(config.data, Storage(config.storage), f"{folder}/data")
    async with evaluation_services(config, model, VERSION, f"{folder}/data/corpus.parquet", watch) as services:
        watch.begin(f"evaluating {model}")
        questions, seed = f"{folder}/data/held_out.parquet", derive_seed(config.seed, "evaluate")
        result = await watch.node(
            "evaluate", evaluate_into(services, folder, questions, seed, VERSION), services.evaluation_size, services.follow
        )
    rows = [{"metric": key, "value": value} for key, value in sorted(result.metrics.items())]
    await acreate_table_artifact(rows, key="evaluation", description=name)
    return result
