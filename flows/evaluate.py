"""Batch evaluation of a policy or of a run's checkpoint on the recipe's held-out questions."""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from prefect import flow
from prefect.artifacts import acreate_table_artifact

from nbrl.flows.display.progress import ProgressDisplay
from nbrl.flows.display.terminal import err
from nbrl.infra.storage import Storage
from nbrl.tasks.environments import stored
from nbrl.tasks.errors import ConfigError
from nbrl.tasks.layout import EvaluationLayout
from nbrl.tasks.model_folder.source import fetch
from nbrl.tasks.nodes.evaluate import evaluate_into
from nbrl.tasks.runs.checkpoints import checkpoint_folder
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.data_review import review
from nbrl.tasks.runs.preflight import prepared
from nbrl.tasks.runs.run import checked_name, new_name
from nbrl.tasks.services.progress import timed
from nbrl.tasks.services.start import evaluation_services

VERSION = "evaluation"


@flow(name="evaluate", flow_run_name="{name}")
async def evaluate(
    recipe: str | RunConfig,
    run: str | None = None,
    checkpoint: int | None = None,
    name: str | None = None,
    overrides: Sequence[str] = (),
) -> dict[str, float]:
    """Write trajectories and rewards below `evaluations/<name>` and return the metrics. Nothing is learned.

    `recipe` and `overrides` are those of `train`. This evaluates the recipe's policy or, with `run`, that run's checkpoint after
    `checkpoint` updates, by default the newest. Raises ConfigError if one of them does not exist.
    """
    config = recipe if isinstance(recipe, RunConfig) else prepared(recipe, overrides, "evaluate")
    layout = EvaluationLayout(checked_name(new_name(run or config.name) if name is None else name))
    storage = Storage(config.storage)
    if storage.list(layout.folder):
        raise ConfigError(f"an evaluation named {layout.name!r} exists in {config.storage.root}; choose another --name")
    chosen: AbstractContextManager[Path] = nullcontext(Path(fetch(config.policy)))
    if run is not None:
        chosen = checkpoint_folder(storage, Path(config.home), run, checkpoint)
    with chosen as model, ProgressDisplay(err) as progress:
        for warning in review(config):
            progress.say(f"nbrl: warning: {warning}")
        stored.write(config.environments, storage, layout.data)
        async with evaluation_services(config, model, VERSION, layout.data, progress) as services:
            progress.begin(f"evaluating {model}")
            work = evaluate_into(services, layout.round, layout.data, config.seed, VERSION)
            result, _ = await timed(progress, "evaluate", work)
            await asyncio.to_thread(storage.delete, layout.round.unfinished)
    rows = [{"metric": metric, "value": value} for metric, value in sorted(result.values.items())]
    await acreate_table_artifact(rows, key="evaluation", description=layout.name)
    return result.values
