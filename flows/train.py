"""The outer loop of one run: iterations between two evaluations."""

import asyncio
from collections.abc import Sequence

from prefect import flow

from nbrl.flows.display.progress import ProgressDisplay
from nbrl.flows.display.terminal import err
from nbrl.flows.iterate import iterate
from nbrl.infra.storage import Storage
from nbrl.tasks.nodes.evaluate import evaluate
from nbrl.tasks.nodes.summarise import summarise
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.data_review import review
from nbrl.tasks.runs.history import Record, read_record, skipped_in_row
from nbrl.tasks.runs.preflight import check_writable, prepared
from nbrl.tasks.runs.run import Run, checked_name, find_run, held, new_name
from nbrl.tasks.runs.scope import Artifact
from nbrl.tasks.runs.summary import Summary, finished, learned
from nbrl.tasks.services.progress import Progress
from nbrl.tasks.services.services import Services
from nbrl.tasks.services.start import training_services


@flow(name="train", flow_run_name="{run}")
async def train(recipe: str | RunConfig, run: str | None = None, overrides: Sequence[str] = ()) -> Summary:
    """Train the run named `run`, which is created or continued, and return its summary.

    `recipe` is the name or the path of a recipe, to which `overrides` (`a.b=c`) apply, or a configuration that passed preflight.
    Raises ConfigError for a configuration that cannot work, and NothingLearnedError when no iteration made an update.
    """
    config = recipe if isinstance(recipe, RunConfig) else prepared(recipe, overrides, "train")
    name = checked_name(new_name(config.name) if run is None else run)
    storage = Storage(config.storage)
    warnings = [warning] if (warning := await asyncio.to_thread(check_writable, config.storage)) else []
    with ProgressDisplay(err) as progress:
        if find_run(storage, name) is None:
            warnings += review(config)
        for warning in warnings:
            progress.say(f"nbrl: warning: {warning}")
        with held(config, name, storage) as opened:
            return finished(opened, config, storage) or await _train(config, opened, progress)


async def _train(config: RunConfig, run: Run, progress: Progress) -> Summary:
    """Evaluate, iterate, evaluate. What finished in an earlier attempt of this run is reused, not done again."""
    async with training_services(config, run, progress) as services:
        records = list[Record]()
        first = last = await _evaluate(services, run, records)
        evaluated = 0  # updates
        while len(records) < config.iterations and skipped_in_row(records) < config.select.patience:
            records.append(await _iterate(services, run, records))
            due = config.evaluate.every and len(records) % config.evaluate.every == 0
            if due and evaluated < records[-1].updates:
                last, evaluated = await _evaluate(services, run, records), records[-1].updates
        if records and evaluated < records[-1].updates:
            last = await _evaluate(services, run, records)
        return learned(await asyncio.to_thread(summarise, services, run, first, last, records))


async def _iterate(services: Services, run: Run, records: list[Record]) -> Record:
    """Run the next iteration after `records`, or read its record if it already happened."""
    scope = run.scope(len(records), records[-1].updates if records else 0)
    record = await asyncio.to_thread(read_record, services.storage, scope)
    if record is None:
        services.progress.begin(f"{run.name}: iteration {scope.iteration + 1} of {services.config.iterations}")
        record = await iterate(services, scope, records[-1].cursor if records else 0)
        services.progress.say(_line([*records, record], services.config.select.patience))
    return record


async def _evaluate(services: Services, run: Run, records: list[Record]) -> Artifact:
    updates = records[-1].updates if records else 0
    services.progress.begin(f"{run.name}: evaluation after {updates} updates")
    result = await evaluate(services, run.scope(updates, updates))
    scores = result.values
    metrics = {f"eval/{name}": value for name, value in scores.items()}
    await asyncio.to_thread(services.tracking.log_metrics, metrics, len(records))
    services.progress.say(f"evaluation after {updates:3d} updates   EM {scores['em']:.3f}   F1 {scores['f1']:.3f}")
    return result


def _line(records: list[Record], patience: int) -> str:
    """The newest iteration as one line."""
    record, metrics = records[-1], records[-1].metrics
    line = (
        f"iteration {record.iteration + 1:3d}   reward {metrics['reward/total']:.3f}   EM {metrics['reward/em']:.3f}   "
        f"{metrics['rollout/trajectories']:.0f} trajectories   "
    )
    if record.skipped:
        return f"{line}nothing learned: {record.skipped} ({skipped_in_row(records)} of at most {patience} in a row)"
    return (
        f"{line}mismatch {metrics['mismatch/logprob_max_abs']:.1e}   "
        f"{metrics['time/iteration']:.1f} s (overhead {metrics['time/overhead_share']:.0%})"
    )
