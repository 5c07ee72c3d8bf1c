"""One iteration of a training, done and thrown away, to say what the whole will take."""

import asyncio
import tempfile
import time
from pathlib import Path

from prefect import flow, get_run_logger

from nbrl.flows.display.progress import ProgressDisplay
from nbrl.flows.display.terminal import err
from nbrl.flows.pipeline import Pipeline
from nbrl.infra.gpu import MemoryPeak
from nbrl.infra.storage import Storage
from nbrl.infra.tracking import TrackingSettings
from nbrl.tasks.nodes.evaluate import asked
from nbrl.tasks.runs import epochs, measured
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.measured import Measured
from nbrl.tasks.runs.opening import opened
from nbrl.tasks.runs.prepared import Prepared
from nbrl.tasks.runs.writer import Writer, writing
from nbrl.tasks.services.progress import Progress
from nbrl.tasks.services.start import training_services


@flow(name="measure", validate_parameters=False, persist_result=False)
async def measure(start: Prepared) -> Measured:
    """Do the first iteration of a run in a temporary folder on the storage, and return its costs. Raises a training's errors."""
    folder = measured.new_folder()
    with tempfile.TemporaryDirectory(prefix="nbrl-measure-") as scratch, ProgressDisplay(err, get_run_logger().info) as progress:
        config = _scratch_run(start.config, folder, Path(scratch))
        storage = Storage(config.storage)
        await asyncio.to_thread(measured.delete_abandoned, start.config.storage)
        try:
            with opened(Prepared.of(config, start.take()), measured.RUN, storage) as run:
                settings, commit = config.model_dump(mode="json"), await asyncio.to_thread(epochs.commit)
                async with writing(run, storage, False, progress.say, settings, commit) as writer:
                    return await _measure(config, writer, progress)
        finally:
            await asyncio.to_thread(Storage(start.config.storage).delete, folder)


def _scratch_run(config: RunConfig, folder: str, scratch: Path) -> RunConfig:
    """Return the same training in another folder of the storage, with metrics that no page shows."""
    storage = measured.inside(config.storage, folder)
    tracking = TrackingSettings(uri=f"sqlite:///{scratch}/mlflow.db", artifacts=str(scratch / "artifacts"))
    return config.model_copy(update={"iterations": 1, "storage": storage, "tracking": tracking})


async def _measure(config: RunConfig, writer: Writer, progress: Progress) -> Measured:
    began = time.monotonic()
    with MemoryPeak() as memory:
        async with training_services(config, writer.run, progress) as services:
            await services.learner.ready()
            start_s = time.monotonic() - began
            progress.begin("measuring one iteration")
            async with Pipeline(services, writer) as pipeline:
                record = await pipeline.iterate([])
            held_out = await asyncio.to_thread(services.reads.questions, writer.run.layout.data, "held_out")
        # The optimiser's state comes last, when the services have ended.
        sizes = await asyncio.to_thread(services.storage.sizes, record.checkpoint) if record.checkpoint else {}
    return Measured(
        start_s=start_s,
        metrics=record.metrics,
        evaluated=len(asked(held_out, config.evaluate, config.seed)),
        memory=memory.most_bytes,
        checkpoint=None if sizes is None else sum(sizes.values()),
        skipped=record.skipped,
    )
