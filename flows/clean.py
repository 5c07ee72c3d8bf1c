"""Deletes from a storage what no retention keeps, of runs that no process trains."""

import asyncio
from collections.abc import Iterator

from prefect import flow, get_run_logger
from prefect.artifacts import acreate_markdown_artifact
from pydantic import Field

from nbrl.flows.display.progress import ProgressDisplay
from nbrl.flows.display.terminal import err
from nbrl.infra.closed import ClosedModel
from nbrl.infra.errors import HeldError, InfraError
from nbrl.infra.home import ROOT
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.errors import ConfigError, RunError, StoppedError, TakenOverError
from nbrl.tasks.layout.runs import RUNS, name_of
from nbrl.tasks.nodes.durable import slug
from nbrl.tasks.runs.history import Record, finished_iterations, read_record
from nbrl.tasks.runs.recipes import resumed_config
from nbrl.tasks.runs.results import scores_of
from nbrl.tasks.runs.retention import dispensable, prune
from nbrl.tasks.runs.run import Run, known_run
from nbrl.tasks.runs.sweep import sweep
from nbrl.tasks.runs.writer import writing

SHOWN = 1000  # lines of the page


class CleanOrder(ClosedModel):
    """A request to clean runs."""

    root: str = Field(ROOT, description="storage root of the runs")
    runs: tuple[str, ...] = Field((), description="names of runs; all of the root when empty")
    dry_run: bool = Field(False, description="say what would be deleted, and delete nothing")


@flow(name="clean", flow_run_name="clean {order.root}", persist_result=False)
async def clean(order: CleanOrder) -> list[str]:
    """Apply each run's `checkpoints` retention, sweep what ended processes left, and return what was deleted.

    A run in training is skipped. A dry run names the checkpoints alone: leftovers are found while they are deleted. Where runs
    cannot be cleaned, the others are, and the first error is raised with the names of all.
    """
    storage = Storage(StorageSettings(root=order.root))
    deleted: list[str] = []
    failed: dict[str, InfraError | RunError] = {}
    with ProgressDisplay(err, get_run_logger().info) as progress:
        for name in order.runs or await asyncio.to_thread(_names, storage):
            try:
                run = known_run(storage, name)
            except RunError as error:  # no run, or one whose identity is damaged
                progress.say(f"{name} cannot be cleaned: {error}")
                failed[name] = error
                continue
            try:
                found = await _clean(storage, run, order.dry_run, progress)
            except (HeldError, TakenOverError, ConfigError) as error:
                progress.say(f"{name} is skipped: {error}")
                continue
            except StoppedError:
                raise
            except (InfraError, RunError) as error:
                progress.say(f"{name} cannot be cleaned: {error}")
                failed[name] = error
                continue
            for each in found:
                progress.say(f"{'would delete' if order.dry_run else 'deleted'} {storage.uri(each)}")
            deleted += found
    title = "Would be deleted" if order.dry_run else "Deleted"
    lines = [f"# {title}: {len(deleted)}", "", *(f"- `{each}`" for each in deleted[:SHOWN])]
    await acreate_markdown_artifact("\n".join(lines), key=slug("clean", order.root), description=f"clean {order.root}")
    if failed:
        first = next(iter(failed.values()))
        raise type(first)(f"not cleaned: {', '.join(failed)}; the first because {first}") from first
    return deleted


async def _clean(storage: Storage, run: Run, dry_run: bool, progress: ProgressDisplay) -> list[str]:
    """Return the keys and checkpoints of a run that were deleted, or would be."""
    config = await asyncio.to_thread(resumed_config, storage, run.name, ())

    def to_go() -> tuple[list[Record], dict[int, float], list[str]]:
        records, scores = _records(storage, run), scores_of(storage, run)
        return records, scores, dispensable(storage, run, records, scores, config.checkpoints)

    if dry_run:
        return (await asyncio.to_thread(to_go))[2]
    async with writing(run, storage, False, progress.say, config.model_dump(mode="json"), keep_ending=True) as writer:
        before = await asyncio.to_thread(storage.list, run.layout.folder)
        await asyncio.to_thread(sweep, storage, writer)
        records, scores, checkpoints = await asyncio.to_thread(to_go)
        await asyncio.to_thread(prune, storage, run, records, scores, config.checkpoints)
        after = set(await asyncio.to_thread(storage.list, run.layout.folder))
    gone = [key for key in before if key not in after]
    return checkpoints + [key for key in gone if not key.startswith(tuple(f"{each}/" for each in checkpoints))]


def _names(storage: Storage) -> tuple[str, ...]:
    return tuple(sorted({name_of(key) for key in storage.list(RUNS) if key.count("/") == 2 and key.endswith("/run.json")}))


def _records(storage: Storage, run: Run) -> list[Record]:
    return list(_read(storage, run, finished_iterations(storage.list(run.layout.iterations), run.layout)))


def _read(storage: Storage, run: Run, count: int) -> Iterator[Record]:
    for number in range(count):
        if (record := read_record(storage, run, number)) is not None:
            yield record
