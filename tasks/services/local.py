"""The services of an evaluation in this process: no engine, no Ray, one runner."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from nbrl.infra.node_cache import NodeCache, PlacedFolder
from nbrl.infra.storage import Storage
from nbrl.tasks.layout.runs import DataLayout
from nbrl.tasks.rollout.local_runner import LocalRunner
from nbrl.tasks.rollout.plan import Server
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.services.fleet import EndpointFleet
from nbrl.tasks.services.progress import Progress, timed
from nbrl.tasks.services.services import Services, runner_plan


@asynccontextmanager
async def local_services(
    config: RunConfig, model: Path | Server, version: str, data: DataLayout, progress: Progress
) -> AsyncIterator[Services]:
    """Start a runner in this process for the model behind a server. The parameters are those of `evaluation_services`."""
    if not isinstance(model, Server):
        raise TypeError("a model folder needs an engine")
    storage = Storage(config.storage)
    runner = LocalRunner(runner_plan(config, storage, data, PlacedFolder(config.policy.path), model))
    try:
        progress.begin("starting")
        await timed(progress, "sandboxes", runner.start(progress.say))
        yield Services(config, storage, NodeCache(config.nodes), progress, EndpointFleet(model.chat.endpoint), [runner])
    finally:
        await runner.stop()
