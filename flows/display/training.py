"""The display of a training: a line after each iteration, and a page in Prefect."""

import asyncio
from collections.abc import Mapping, Sequence

from nbrl.flows.display.pages import page, publish_page
from nbrl.infra.home import Home
from nbrl.infra.tracking_address import SERVERS, database
from nbrl.tasks.rollout.chunks import places_of
from nbrl.tasks.runs.history import Record, skipped_in_row
from nbrl.tasks.runs.writer import Writer
from nbrl.tasks.services.services import Services

EXAMPLES = 3  # trajectories on the page of a run


async def show(services: Services, writer: Writer, records: Sequence[Record], scores: Mapping[int, float]) -> None:
    """Bring the page of the run up to date; `scores` are held-out successes by updates."""
    config, storage, layout = services.config, services.storage, writer.run.layout
    examples: list[str] = []
    root = f" --root {config.storage.root}"
    if records:
        newest = records[-1].rounds[-1].trajectories
        index = await asyncio.to_thread(places_of, storage, newest.path, newest.digest)
        examples = [f"{layout.name}/{each}{root}" for each in index["id"].slice(0, EXAMPLES).to_pylist()]
    mlflow = config.tracking.uri or database(Home(config.home))
    where = {
        "storage": f"`{storage.uri(layout.folder)}`",
        "lines, engine's and Ray's logs": f"`{storage.uri(layout.log(writer.epoch))}`, or `nbrl logs {layout.name}{root}`",
        "MLflow": f"<{mlflow}>" if mlflow.startswith(SERVERS) else f"`{mlflow}`, or `nbrl ui --home {config.home}`",
        "trajectories in the browser": f"`nbrl ui{root}`",
    }
    await publish_page(layout.name, page(layout.name, config.iterations, records, scores, examples, where))


def line_of(records: Sequence[Record], patience: int) -> str:
    """Return the newest iteration as one line."""
    record, metrics = records[-1], records[-1].metrics
    success = metrics["reward/success"]
    line = (
        f"iteration {record.iteration + 1:3d}   reward {metrics['reward/total']:.3f}   success {success:.3f}   "
        f"{metrics['rollout/trajectories']:.0f} trajectories   "
    )
    if record.skipped:
        return f"{line}nothing learned: {record.skipped} ({skipped_in_row(records)} of at most {patience} in a row)"
    return (
        f"{line}mismatch {metrics['mismatch/logprob_max_abs']:.1e}   "
        f"{metrics['time/iteration']:.1f} s (overhead {metrics['time/overhead_share']:.0%})"
    )
