"""The outer loop of one run: iterations between two evaluations."""

import asyncio
from collections.abc import Sequence

from prefect import flow, get_run_logger, tags

from nbrl.flows.display.pages import counted, tag
from nbrl.flows.display.progress import ProgressDisplay
from nbrl.flows.display.terminal import err
from nbrl.flows.display.training import line_of, show
from nbrl.flows.held_out import HeldOut
from nbrl.flows.logs import lines_kept
from nbrl.flows.pipeline import Pipeline
from nbrl.flows.stream import Stream
from nbrl.infra.home import Home
from nbrl.infra.storage import Storage
from nbrl.tasks.nodes.evaluate import summarise
from nbrl.tasks.runs import history
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.epochs import check_newest
from nbrl.tasks.runs.opening import opened
from nbrl.tasks.runs.preflight import check_writable, prepared
from nbrl.tasks.runs.prepared import Prepared
from nbrl.tasks.runs.redo import drop_obsolete_evaluations, put_aside
from nbrl.tasks.runs.results import scores_of
from nbrl.tasks.runs.retention import prune
from nbrl.tasks.runs.run import checked_name, new_name
from nbrl.tasks.runs.sweep import sweep, swept_writing
from nbrl.tasks.runs.warnings import warnings_of
from nbrl.tasks.runs.writer import Writer
from nbrl.tasks.services.progress import Progress
from nbrl.tasks.services.restarts import Restarts
from nbrl.tasks.services.services import Services
from nbrl.tasks.services.start import training_services
from nbrl.tasks.tracking.delivery import complete


@flow(name="train", flow_run_name="train {run}", persist_result=False)
async def train(
    recipe: str | Prepared,
    run: str | None = None,
    overrides: Sequence[str] = (),
    take_over: bool = False,
    redo: Sequence[tuple[int, str]] = (),
) -> history.Summary:
    """Train the run named `run`, which is created or continued, and return its summary.

    `recipe` is the name or the path of a recipe, to which `overrides` (`a.b=c`) apply, or what preflight returned. With
    `take_over`, another process that trains this run is stopped; `redo` names nodes to do again, with their iterations. Raises
    ConfigError for what cannot work, NothingLearnedError when no iteration made an update, InfraError if the run is trained now.
    """
    start = recipe if isinstance(recipe, Prepared) else prepared(recipe, overrides, "train", run and checked_name(run))
    config, storage = start.config, Storage(start.config.storage)
    name = checked_name(new_name(config.name) if run is None else run)
    await tag(config.name, name)
    with ProgressDisplay(err, get_run_logger().info) as progress, tags(config.name, name):
        for warning in [*await asyncio.to_thread(check_writable, config.storage), *warnings_of(start)]:
            progress.say(f"nbrl: warning: {warning}")
        with opened(start, name, storage) as of_run:
            if not redo and (summary := history.finished(of_run, config, storage)):
                await asyncio.to_thread(complete, config, storage, of_run, progress.say)
                return summary
            async with (
                swept_writing(of_run, config, take_over, progress.say) as writer,
                lines_kept(storage, writer, progress, Home(config.home)),
                counted(progress, name),
            ):
                return await _as_writer(config, writer, progress, redo)


async def _as_writer(config: RunConfig, writer: Writer, progress: Progress, redo: Sequence[tuple[int, str]]) -> history.Summary:
    """Put aside what is done again, delete what earlier processes left, and train, with new services after faults."""
    storage = Storage(config.storage)
    for iteration, node in redo:
        await asyncio.to_thread(put_aside, storage, config, writer, iteration, node, progress.say)
    await asyncio.to_thread(history.check_unbroken, storage, writer.run)
    await asyncio.to_thread(sweep, storage, writer)
    restarts = Restarts(config.restarts, progress.say)
    summary = await restarts.over(lambda: _train(config, writer, progress, restarts))
    if restarts.made:  # an attempt that failed may have left what the next one did not come to
        await asyncio.to_thread(sweep, storage, writer)
    return summary


async def _train(config: RunConfig, writer: Writer, progress: Progress, restarts: Restarts) -> history.Summary:
    """Evaluate, iterate, evaluate. What finished in an earlier attempt of this run is reused, not done again."""
    run, storage = writer.run, Storage(config.storage)
    async with training_services(config, run, progress, restarts.up) as services:
        await asyncio.to_thread(check_newest, storage, run.layout, writer.epoch)
        records = list[history.Record]()
        held_out = HeldOut(services, writer, await asyncio.to_thread(scores_of, storage, run))
        first = await held_out.evaluate(records)
        async with (Stream if config.pipeline.stream else Pipeline)(services, writer) as pipeline:
            while len(records) < config.iterations and history.skipped_in_row(records) < config.select.patience:
                records.append(await _iterate(services, writer, records, pipeline))
                restarts.reached(len(records))
                if config.evaluate.every and len(records) % config.evaluate.every == 0:
                    await pipeline.quiet()
                    await held_out.evaluate(records)
                if records[-1].epoch == writer.epoch:  # not one that was found
                    await asyncio.to_thread(check_newest, storage, run.layout, writer.epoch)
                    pipeline.begin(records)
                    await asyncio.to_thread(prune, storage, run, records, held_out.scores, config.checkpoints)
                    await show(services, writer, records, held_out.scores)
        last = await held_out.evaluate(records)
        await asyncio.to_thread(check_newest, storage, run.layout, writer.epoch)
        await asyncio.to_thread(drop_obsolete_evaluations, storage, writer, records)
        summary = history.learned(await asyncio.to_thread(summarise, services, run, first, last, records))
    await asyncio.to_thread(prune, storage, run, records, held_out.scores, config.checkpoints)  # the last state is there now
    return summary


async def _iterate(
    services: Services, writer: Writer, records: list[history.Record], pipeline: Pipeline | Stream
) -> history.Record:
    """Run the next iteration after `records`, or read its record if it already happened."""
    record = await asyncio.to_thread(history.read_record, services.storage, writer.run, len(records))
    if record is None:
        history.check_samples(writer.run, records, services.config.update.ess_floor, services.storage.settings.option)
        scope = writer.iteration(len(records), history.policy_after(writer.run, records))
        services.progress.begin(f"{scope.run}: {scope.title} of {services.config.iterations}")
        record = await pipeline.iterate(records)
        services.progress.say(line_of([*records, record], services.config.select.patience))
    return record
