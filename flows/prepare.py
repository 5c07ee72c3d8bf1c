"""Makes questions to train on: unify → deduplicate → decontaminate → rate → filter → split."""

import asyncio
import io
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from inspect import isawaitable
from pathlib import Path
from typing import Any

import pyarrow as pa
from prefect import State, flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.states import Completed

from nbrl.flows.display.progress import ProgressDisplay
from nbrl.flows.display.terminal import err
from nbrl.infra import ray_cluster
from nbrl.infra.arrow_files import read_parquet
from nbrl.infra.home import Home
from nbrl.infra.ray_data import map_tables
from nbrl.infra.storage import Storage, StorageSettings
from nbrl.tasks.errors import NoQuestionLeftError
from nbrl.tasks.prepare.card import Card, finished, write
from nbrl.tasks.prepare.rate import difficulty, rate
from nbrl.tasks.prepare.rows import drops, kept, split
from nbrl.tasks.prepare.settings import PrepareSettings
from nbrl.tasks.prepare.similar import decontaminate, deduplicate
from nbrl.tasks.prepare.stages import ANSWERS, PREPARATION, check_whole, identity, read_answers, stage_name
from nbrl.tasks.prepare.unify import read_evaluation, unify
from nbrl.tasks.runs.decisive import decisive
from nbrl.tasks.runs.steps import StepRecord, folder_steps, work_folder
from nbrl.tasks.services.progress import Progress, timed

Work = Callable[[pa.Table], pa.Table | Awaitable[pa.Table]]


@flow(name="prepare", flow_run_name="prepare {folder.name}", persist_result=False)
async def prepare(settings: PrepareSettings, folder: Path, home: str) -> Card:
    """Write train, held_out and test questions with a data card into `folder`, and return the card.

    Finished stages of an earlier call with the same settings and files are taken as they are. Raises ConfigError for what cannot
    work, and PrepareError when too many questions stay unrated, a model's server fails, or no question is left.
    """
    wanted = await asyncio.to_thread(identity, settings)
    async with AsyncExitStack() as stack:
        progress = stack.enter_context(ProgressDisplay(err, get_run_logger().info))
        storage = stack.enter_context(work_folder(folder, wanted, PREPARATION))
        if (card := await asyncio.to_thread(finished, storage)) is not None:
            return card
        progress.begin(f"preparing {folder}")
        await timed(progress, "Ray", ray_cluster.use(stack, settings.ray, Home(home).logs))
        chain, names = Chain(storage, progress), wanted["sources"]
        files = {kind: [wanted[f"{kind}.{name}"] for name in wanted[kind]] for kind in ("sources", "evaluation")}

        await chain.run("unify", files["sources"], lambda _: unify(settings.sources))
        await chain.run(
            "deduplicate",
            [decisive(settings.deduplicate), names],
            lambda rows: deduplicate(rows, names, settings.deduplicate, map_tables),
        )
        await chain.run(
            "decontaminate", [decisive(settings.decontaminate), files["evaluation"]], partial(_decontaminate, settings)
        )
        if (rating := settings.rate) is not None:
            ratings = Storage(StorageSettings(root=str(settings.ratings or folder)))
            await chain.run("rate", decisive(rating), lambda rows: rate(rows, rating, ratings, progress))
        if (hard := settings.difficulty) is not None:
            answers = read_parquet(io.BytesIO(read_answers(hard)))
            await chain.run("difficulty", [decisive(hard), wanted[ANSWERS]], lambda rows: difficulty(rows, hard, answers))
        await chain.run("split", decisive(settings.split), lambda rows: split(rows, settings.split))
        return await asyncio.to_thread(write, storage, chain.tables, wanted)


class Chain:
    """Stages one after another, each on the questions that the one before kept, each a Prefect task that is done once."""

    def __init__(self, storage: Storage, progress: Progress) -> None:
        self._storage, self._progress, self._steps = storage, progress, folder_steps(storage, StepRecord, progress.say)
        self._before: list[str] = []  # digest of the table that the last stage made
        self.tables: dict[str, pa.Table] = {}  # results by stage

    async def run(self, stage: str, decides: Any, work: Work) -> None:
        """Do a stage, or find what it made. `decides`: all that its result depends on besides the questions, as JSON values."""
        name = stage_name(stage, decides, self._before)
        before = kept(list(self.tables.values())[-1]) if self.tables else None

        async def once() -> Any:
            if found := await asyncio.to_thread(self._steps.find, f"{name}.json", stage):
                return Completed(name="Cached", data=found)
            after = await asyncio.to_thread(work, before)
            if isawaitable(after):
                after = await after
            if before is not None:
                check_whole(stage, before, after)
            return await asyncio.to_thread(self._keep, name, after)

        made, _ = await timed(self._progress, stage, task(name=stage, persist_result=False, cache_policy=NO_CACHE)(once)())
        record: StepRecord = await made.aresult() if isinstance(made, State) else made
        ((key, digest),) = record.objects.items()
        self._before = [digest]
        self.tables[stage] = table = await asyncio.to_thread(self._storage.read_table, key, digest)
        if not len(kept(table)):
            reasons = ", ".join(f"{count} {reason}" for reason, count in drops(table).items())
            raise NoQuestionLeftError(f"no question is left after {stage}: {reasons}; relax its settings, in another --out")

    def _keep(self, name: str, table: pa.Table) -> StepRecord:
        digest = self._storage.write_table(f"{name}.parquet", table.combine_chunks())
        return self._steps.keep(f"{name}.json", StepRecord(objects={f"{name}.parquet": digest}))


def _decontaminate(settings: PrepareSettings, rows: pa.Table) -> pa.Table:
    evaluation = {file.name: read_evaluation(file) for file in settings.evaluation}
    return decontaminate(rows, evaluation, settings.decontaminate, map_tables)
