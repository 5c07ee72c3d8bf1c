"""A run on Prefect's pages: tags, one page that grows with it, and the progress of a node."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from uuid import UUID

from prefect import get_client
from prefect.artifacts import acreate_markdown_artifact, acreate_progress_artifact, aupdate_progress_artifact
from prefect.runtime import flow_run
from rich.console import Group, RenderableType
from rich.table import Table

from nbrl.flows.display.progress import ProgressDisplay, ProgressLine
from nbrl.flows.display.tables import NODES
from nbrl.flows.upkeep import end_orphans, label
from nbrl.tasks.nodes.durable import slug
from nbrl.tasks.runs.history import Record, Summary

BARS = "▁▂▃▄▅▆▇█"
LOOK_S = 1.0
NEWEST = 100  # iterations in the table


def sparkline(values: list[float]) -> str:
    """Return values in [0, 1] as a row of bars."""
    return "".join(BARS[min(len(BARS) - 1, int(value * len(BARS)))] for value in values)


def report(summary: Summary) -> RenderableType:
    scores = Table("", "before", "after", title="held-out questions", title_justify="left")
    names = {"success": "success", "em": "exact match", "f1": "F1"}
    labels = sorted({*summary.before, *summary.after})
    names |= {key: f"  {key.removeprefix('success/')}" for key in labels if key.startswith("success/")}
    for key, name in names.items():
        scores.add_row(name, *(f"{values[key]:.3f}" if key in values else "–" for values in (summary.before, summary.after)))
    times = Table("node", "seconds", "per iteration", title="where the time went", title_justify="left")
    for node in (each for each in NODES if each in summary.seconds):
        seconds = summary.seconds[node]
        times.add_row(node, f"{seconds:.1f}", f"{seconds / max(1, summary.iterations):.2f}")
    times.add_row("all", f"{summary.seconds.get('iteration', 0.0):.1f}", f"overhead {summary.overhead_share:.0%}")
    return Group(scores, times)


def closing(summary: Summary, root: str, home: str) -> str:
    """Return the figures in one sentence, and the next commands with the options `root` and `home`, which must not be wrapped."""
    stalled = f"the run ended early: {summary.stalled}\n" if summary.stalled else ""
    return (
        f"{stalled}"
        f"{summary.iterations} iterations, {summary.trajectories} trajectories, {summary.sampled_tokens} sampled tokens; "
        f"engine and trainer differ by at most {summary.mismatch_max:.1e} nats\n"
        f"learning curve  {sparkline(summary.curve)}  {summary.curve_path}\n"
        f"a trajectory    nbrl show {summary.example}{root}\n"
        f"the pages       nbrl ui{home}    (MLflow and Prefect)\n"
        f"publish it      nbrl publish-run {summary.run} published/{summary.run}{root}\n"
        f"verify it       nbrl audit published/{summary.run}"
    )


async def tag(*names: str) -> None:
    """Add tags to the flow run in progress, note its process, and end the flow runs of processes that are gone."""
    async with get_client() as client:
        current = await client.read_flow_run(flow_run.id)
        await client.update_flow_run(current.id, tags=sorted({*current.tags, *names}))
        await label(client, current.id)
        await end_orphans(client)


async def publish_page(name: str, text: str) -> None:
    """Replace the page of a run by this Markdown."""
    await acreate_markdown_artifact(text, key=slug("run", name), description=f"run {name}")


def page(
    name: str,
    total: int,
    records: Sequence[Record],
    scores: Mapping[int, float],
    examples: Sequence[str],
    where: Mapping[str, str],
) -> str:
    """Return the page of a run as Markdown: `scores` are held-out successes by updates, `examples` trajectories."""
    curve = [record.metrics["reward/success"] for record in records]
    lines = [f"# Run {name}", "", f"{len(records)} of {total} iterations."]
    if curve:
        lines += ["", f"Success of the training rollouts, iteration by iteration: `{sparkline(curve[-NEWEST:])}`"]
    lines += ["", "## Held-out questions", "", "| after updates | success |", "|---|---|"]
    lines += [f"| {updates} | {score:.3f} |" for updates, score in sorted(scores.items())]
    lines += ["", "## Iterations", "", "| iteration | reward | success | trajectories | seconds | |", "|---|---|---|---|---|---|"]
    for record, success in list(zip(records, curve, strict=True))[-NEWEST:]:
        metrics = record.metrics
        cells = [f"{record.iteration + 1}", f"{metrics['reward/total']:.3f}", f"{success:.3f}"]
        cells += [f"{metrics['rollout/trajectories']:.0f}", f"{metrics['time/iteration']:.1f}", record.skipped.replace("|", "/")]
        lines.append(f"| {' | '.join(cells)} |")
    if examples:
        lines += ["", "## Trajectories of the newest iteration", "", "```", *(f"nbrl show {each}" for each in examples), "```"]
    lines += ["", "## Where things are", "", *(f"- {what}: {place}" for what, place in where.items()), ""]
    return "\n".join(lines)


@asynccontextmanager
async def counted(progress: ProgressDisplay, name: str) -> AsyncIterator[None]:
    """Show in Prefect how many items of a node are finished, once a second at most, while the body runs."""
    watching = asyncio.create_task(_count(progress, name))
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def _count(progress: ProgressDisplay, name: str) -> None:
    shown: tuple[ProgressLine, UUID] | None = None
    done = -1
    while True:
        await asyncio.sleep(LOOK_S)
        with suppress(Exception):  # a page is no reason to fail; the next update sends what Prefect's server lacks
            if shown is not None and shown[0].done != done:
                line, artifact = shown
                await aupdate_progress_artifact(artifact, 100.0 * line.done / line.total)
                done = line.done
            if (now := progress.counted()) is not None and (shown is None or now[1] is not shown[0]):
                title, line = now
                key, description = slug("progress", f"{name} {line.name}"), f"{title}: {line.name}, {line.total} in all"
                shown = line, await acreate_progress_artifact(100.0 * line.done / line.total, key=key, description=description)
                done = line.done
