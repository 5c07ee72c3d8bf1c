"""Makes a policy that can act, by supervised training: demonstrations → blocks of optimiser steps → a model folder."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from threading import Event

from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE

from nbrl.flows.display.progress import ProgressDisplay
from nbrl.flows.display.terminal import err
from nbrl.infra import ray_cluster
from nbrl.infra.home import Home
from nbrl.infra.node_cache import PlacedFolder
from nbrl.infra.storage import Storage
from nbrl.tasks.environments import stored
from nbrl.tasks.learner.driver.handle import LearnerHandle
from nbrl.tasks.learner.places import Places
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.seeds import derive_seed
from nbrl.tasks.services.learner import LearnerService
from nbrl.tasks.services.progress import Progress, timed
from nbrl.tasks.warmstart.fresh.model import make_folder
from nbrl.tasks.warmstart.orders import digest_of, make_plan, order_of
from nbrl.tasks.warmstart.settings import WarmstartSettings
from nbrl.tasks.warmstart.start import held_out, stages_of, start_folder
from nbrl.tasks.warmstart.work_folder import WarmstartPlan, WorkFolder, identity, opened


@flow(name="warmstart", flow_run_name="warmstart {out.name}", persist_result=False)
async def warmstart(settings: WarmstartSettings, training: RunConfig, storage: Storage, out: Path, home: str) -> dict[str, float]:
    """Make the model folder `out`, and return the loss of each phase at its end. The same call goes on where another one ended.

    `training` is the configuration for whose agent the policy is made; runs to start from lie in `storage`.
    """
    async with AsyncExitStack() as stack:
        progress = stack.enter_context(ProgressDisplay(err, get_run_logger().info))
        progress.begin(f"making {out}")
        digest = await asyncio.to_thread(digest_of, settings, storage)
        wanted = await asyncio.to_thread(identity, settings, training, digest)
        work = stack.enter_context(opened(out, wanted, progress.say))
        if (losses := await asyncio.to_thread(work.finish)) is not None:
            return losses
        model = await _model(stack, settings, training, storage, work, home)
        plan, _ = await timed(progress, "demonstrations", _demonstrations(settings, training, model, work))
        _report_plan(plan, progress)
        await timed(progress, "Ray", ray_cluster.use(stack, settings.ray, Home(home).logs))
        learner, _ = await timed(progress, "learner", _learner(stack, settings, plan, model, work, progress))
        losses = await _train(learner, settings, plan, work, digest, progress)
        await asyncio.to_thread(work.finish)
        return losses


async def _model(
    stack: AsyncExitStack, settings: WarmstartSettings, training: RunConfig, storage: Storage, work: WorkFolder, home: str
) -> Path:
    """Return the folder of the model to start from."""
    if settings.fresh is None:
        assert settings.start is not None
        return stack.enter_context(start_folder(settings.start, storage, Path(home)))
    return await asyncio.to_thread(make_folder, settings.fresh, settings.seed, training.agent, work.fresh)


async def _demonstrations(settings: WarmstartSettings, training: RunConfig, model: Path, work: WorkFolder) -> WarmstartPlan:
    """Record them in a thread, which ends at its next demonstration if this is cancelled; or read what was planned before."""
    if (planned := await asyncio.to_thread(work.plan)) is not None:
        return planned
    cancelled = Event()

    @task(name="demonstrations", cache_policy=NO_CACHE, persist_result=False)
    async def record() -> WarmstartPlan:
        loaded = await asyncio.to_thread(stored.load, training.environments)
        names = {source.environment for source in settings.sources.values()}
        stages = await asyncio.to_thread(stages_of, training, names, loaded, model, cancelled)
        return await asyncio.to_thread(make_plan, settings, stages, work, held_out(loaded))

    try:
        return await record()
    finally:
        cancelled.set()


def _report_plan(plan: WarmstartPlan, progress: Progress) -> None:
    for phase, (count, left_out) in plan.demonstrations.items():
        others = f", {left_out} left out" if left_out else ""
        steps = sum(block.steps for block in plan.blocks if block.phase == phase)
        progress.say(f"{phase}: {count} demonstrations{others}, {steps} steps")


async def _learner(
    stack: AsyncExitStack, settings: WarmstartSettings, plan: WarmstartPlan, model: Path, work: WorkFolder, progress: Progress
) -> LearnerService:
    update, seed = settings.update.for_learner(plan.steps), derive_seed(settings.seed, "learner")
    grows = settings.ray.address is not None  # a cluster of others may add machines

    places = Places(PlacedFolder(str(model)), work.storage)

    def start(number: int) -> LearnerHandle:
        notes = work.path / "ray" / str(number)  # Ray Train would continue what it finds there
        return LearnerHandle.start(update, places, str(notes), seed, grows)

    learner = LearnerService(start, progress.say, settings.update.timeout_s)
    stack.push_async_callback(learner.stop)
    await learner.ready()
    return learner


async def _train(
    learner: LearnerService, settings: WarmstartSettings, plan: WarmstartPlan, work: WorkFolder, start: str, progress: Progress
) -> dict[str, float]:
    """Train every block that is not trained yet. Returns the mean loss in the last block of each phase."""

    @task(name="train", task_run_name="train block {number}", cache_policy=NO_CACHE, persist_result=False)
    async def train(number: int) -> dict[str, float]:
        result = await learner.update(order_of(settings, work, number, plan.blocks[number], start))
        if result.skipped:
            progress.say(f"a step was skipped: {result.skipped}")
        return {"loss": result.metrics["update/loss"], "seconds": result.metrics["seconds/total"]}

    trained, losses = await asyncio.to_thread(work.trained, plan)
    done = sum(block.steps for block in plan.blocks[:trained])
    progress.started("train")
    for number, block in list(enumerate(plan.blocks))[trained:]:
        metrics = await train(number)
        done += block.steps
        losses[block.phase] = metrics["loss"]
        await asyncio.to_thread(work.keep, number, losses)
        progress.advanced("train", done, plan.steps)
        progress.say(f"{block.phase}: step {done} of {plan.steps}, loss {metrics['loss']:.3f}, {metrics['seconds']:.0f} s")
    await asyncio.to_thread(work.end, len(plan.blocks) - 1, losses)
    return losses
