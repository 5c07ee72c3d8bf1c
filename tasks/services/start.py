"""Starts the services of a run concurrently, and ends all of them however the run ends."""

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TypeVar

from nbrl.infra import ray_cluster
from nbrl.infra.engine.actor import EnginePlan
from nbrl.infra.engine.command import AdapterRoom
from nbrl.infra.engine.settings import MEMORY_SAVER, ROUTES, new_key
from nbrl.infra.errors import DamagedError, MissingError, StorageError
from nbrl.infra.gpu import gpus
from nbrl.infra.home import Home
from nbrl.infra.manifest import check_whole
from nbrl.infra.node_cache import NodeCache, PlacedFolder
from nbrl.infra.paths import scratch
from nbrl.infra.storage import Storage
from nbrl.infra.tracking import Tracking
from nbrl.tasks.errors import TakenOverError
from nbrl.tasks.layout.checkpoints import HF
from nbrl.tasks.layout.runs import DataLayout
from nbrl.tasks.learner.driver.handle import LearnerHandle
from nbrl.tasks.learner.places import Places, on_cuda
from nbrl.tasks.model_folder.source import fetch
from nbrl.tasks.rollout.plan import Server
from nbrl.tasks.rollout.pool import RunnerPool
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.ending import Ending, ending_of
from nbrl.tasks.runs.epochs import check_newest, newest
from nbrl.tasks.runs.history import damaged_checkpoint, newest_policy, policies_in_use
from nbrl.tasks.runs.run import Run
from nbrl.tasks.runs.scope import Weights
from nbrl.tasks.runs.teacher import teacher_folder
from nbrl.tasks.seeds import derive_seed
from nbrl.tasks.services.concurrently import (
    all_of,
    beside,
    both,
    ended,
    errors_wait_for,
    raised,
    reported_if_slow,
    succeeded,
    watched,
)
from nbrl.tasks.services.engine import Served
from nbrl.tasks.services.fleet import EndpointFleet, EngineFleet
from nbrl.tasks.services.learner import LearnerService
from nbrl.tasks.services.machines import check_machines
from nbrl.tasks.services.progress import Progress, timed
from nbrl.tasks.services.restarts import curable
from nbrl.tasks.services.served_teacher import check_served
from nbrl.tasks.services.services import Services, Training, place, runner_plan
from nbrl.tasks.services.sglang_fleet import SglangFleet, adapter_room
from nbrl.tasks.services.weight_broadcast import WeightBroadcast
from nbrl.tasks.tracking.delivery import Delivery
from nbrl.tasks.tracking.mlflow_sync import MlflowSync
from nbrl.tasks.tracking.sinks import sinks_of

T = TypeVar("T")
READY_S = 120.0  # for a learner and for runners, before it is said what they may wait for
DECIDED_S = 120.0  # for a learner that still loads when something else has failed


async def _runners(
    stack: AsyncExitStack,
    config: RunConfig,
    model: PlacedFolder,
    data: DataLayout,
    storage: Storage,
    progress: Progress,
    server: Server | None = None,
    pools: int = 1,
) -> list[RunnerPool]:
    """Return so many pools of runners, of which each has its own."""
    plan = await asyncio.to_thread(runner_plan, config, storage, data, model, server)
    made = [RunnerPool(plan) for _ in range(pools)]
    for pool in made:
        stack.push_async_callback(pool.stop)
    slow = "runners are not ready yet: they start, or wait for room, see rollout.resources and `ray status`"
    await reported_if_slow(all_of(pool.start(progress.say) for pool in made), READY_S, lambda: progress.say(slow))
    return made


def _learner(
    stack: AsyncExitStack,
    config: RunConfig,
    run: Run,
    model: PlacedFolder,
    teacher: PlacedFolder | None,
    folder: Path,
    progress: Progress,
) -> LearnerService:
    """Begin to start the learner."""
    grows = config.ray.address is not None  # a cluster of others may add machines
    # So that a learner which is started again does not go on on other devices, in other numbers.
    device = "cuda" if on_cuda(config.update, ray_cluster.offered("GPU"), grows) else "cpu"
    update = config.update.model_copy(update={"device": device})
    places = Places(model, Storage(config.storage), config.nodes, teacher)

    def start(number: int) -> LearnerHandle:
        notes = folder / f"train-{number}"  # Ray Train would continue what it finds there
        return LearnerHandle.start(update, places, str(notes), derive_seed(run.seed, "learner"), grows, again=number > 0)

    learner = LearnerService(start, progress.say, config.update.timeout_s)
    stack.push_async_exit(lambda kind, error, trace: learner.stop() if error else learner.finish())
    return learner


async def _loaded(learner: LearnerService, progress: Progress) -> None:
    slow = "the learner is not ready yet: its ranks load the model, or wait for room, see update.resources, GPUs and `ray status`"
    await _shown(progress, "learner", reported_if_slow(learner.ready(), READY_S, lambda: progress.say(slow)))


def _delivery(stack: AsyncExitStack, config: RunConfig, run: Run, home: Home, progress: Progress) -> Delivery:
    """Return the delivery to MLflow, which is to be started once the services are up: a start that fails is no run there."""
    tracking = Tracking(config.tracking, home)
    storage = Storage(config.storage)
    sinks = sinks_of(config, storage, run)
    sync = MlflowSync(config, storage, run, tracking)
    delivery = Delivery(run.name, sync, tracking, progress.say, sinks, storage.settings.option)
    epoch = newest(storage, run.layout)
    stack.push(lambda kind, error, trace: delivery.finish(_ending(storage, run, epoch, error)))
    return delivery


def _ending(storage: Storage, run: Run, epoch: str, error: BaseException | None) -> Ending:
    """Return how a training in this epoch ended: a process that takes the run over stops this one, or makes it fail."""
    ending = ending_of(error)
    if ending.status != "FINISHED":
        try:
            check_newest(storage, run.layout, epoch)
        except TakenOverError as taken:
            return ending_of(taken)
        except StorageError:
            pass
    return ending


@asynccontextmanager
async def training_services(
    config: RunConfig, run: Run, progress: Progress, up: Callable[[], None] = lambda: None
) -> AsyncIterator[Services]:
    """Start Ray with engines, runners and learner, and delivery to MLflow; the engines serve the run's newest weights.

    The learner may still be loading the model, unless it needs the engines' GPUs; `up` is called once it is ready as well.
    """
    home, storage = Home(config.home), Storage(config.storage)
    async with AsyncExitStack() as stack:
        notes = _scratch(stack, home, run.name)
        initial, policy = fetch(config.policy), newest_policy(storage, run)
        for used in await asyncio.to_thread(policies_in_use, storage, run, config.pipeline.lag):
            await asyncio.to_thread(_check_checkpoint, storage, run, used)
        progress.begin(f"{run.name}: starting")
        delivery = _delivery(stack, config, run, home, progress)
        await _shown(progress, "Ray", _ray(stack, config, home, progress.say))
        model = await asyncio.to_thread(place, initial, storage, config.ray.address is not None)
        if config.update.teacher is not None and config.update.teacher.served:
            await _shown(progress, "teacher", check_served(config.update.teacher, config.policy))
        taught_by = stack.enter_context(teacher_folder(config, storage))
        teacher = None
        if taught_by is not None:
            teacher = (await asyncio.to_thread(place, taught_by, storage, config.ray.address is not None)).whole
        room = adapter_room(config.update.lora, initial, config.pipeline.lag)
        weights = Served(PlacedFolder(policy.checkpoint, storage) if policy.checkpoint else None, str(policy.updates))
        plan = _engine_plan(config, home, room)
        start = _shown(progress, "engine", SglangFleet.start(stack, plan, model.whole, weights, progress.say))
        if plan.shared_gpus:  # engines size their caches by what is free when they start
            start = _same(await start)
        learner = _learner(stack, config, run, model.whole, teacher, notes, progress)
        loading = asyncio.create_task(_loaded(learner, progress))
        stack.push_async_callback(ended, loading)
        runners = _runners(stack, config, model.texts, run.layout.data, storage, progress, pools=config.pools)
        sampling = both(start, _shown(progress, "runners", runners))
        engines, pools = await beside(sampling, [loading], lambda error: True)
        stack.callback(learner.end)  # it ends while runners and engines are stopped
        if plan.shared_gpus:
            await loading
        loading.add_done_callback(lambda done: up() if succeeded(done) else None)
        health = watched(ray_cluster.check, engines.check_health, lambda: raised(loading))
        # Until the learner is up, it is unknown whether new services would cure an error.
        async with errors_wait_for(loading, DECIDED_S, curable), health:
            cache = NodeCache(config.nodes)
            source = _weight_source(config, plan, learner)
            delivery.start()
            yield Services(config, storage, cache, progress, engines, pools, Training(learner, delivery, source))


@asynccontextmanager
async def evaluation_services(
    config: RunConfig, model: Path | Server, version: str, data: DataLayout, progress: Progress
) -> AsyncIterator[Services]:
    """Start Ray with runners, and an engine for a model in a folder; the model behind a server is already served."""
    home, storage = Home(config.home), Storage(config.storage)
    async with AsyncExitStack() as stack:
        progress.begin("starting")
        folder, server = (Path(config.policy.path), model) if isinstance(model, Server) else (model, None)
        await _shown(progress, "Ray", _ray(stack, config, home, progress.say, server is None, False))
        placed = await asyncio.to_thread(place, folder, storage, config.ray.address is not None and server is None)

        async def engine() -> EngineFleet:
            if server is not None:
                return EndpointFleet(server.chat.endpoint)
            plan = _engine_plan(config, home, None, ranks=False)
            return await _shown(
                progress, "engine", SglangFleet.start(stack, plan, placed.whole, Served(None, version), progress.say)
            )

        runners = _shown(progress, "runners", _runners(stack, config, placed.texts, data, storage, progress, server))
        engines, pools = await both(engine(), runners)
        async with watched(ray_cluster.check, engines.check_health):
            yield Services(config, storage, NodeCache(config.nodes), progress, engines, pools)


def _engine_plan(config: RunConfig, home: Home, room: AdapterRoom | None, ranks: bool = True) -> EnginePlan:
    """Return the run's engines, with a key of their own. Without enough GPUs they share those of the learner's `ranks`."""
    device, joined = config.engine.resolved_device, config.ray.address is not None
    settings = config.engine.model_copy(update={"device": device})
    taken = 0 if config.update.device == "cpu" else config.update.workers
    offered = int(ray_cluster.offered("GPU"))
    too_few = device == "cuda" and settings.count * settings.tensor_parallel + taken > offered
    named = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(max(offered, gpus()))))
    shared = named if too_few and ray_cluster.machines() == 1 else ""
    if shared and ranks and not config.pipeline.lag:  # then nothing samples beside an update
        settings = settings.model_copy(update={"extra_args": settings.extra_args | {MEMORY_SAVER: ""}})
    if ranks and config.update.router_replay:
        settings = settings.model_copy(update={"extra_args": settings.extra_args | {ROUTES: ""}})
    return EnginePlan(
        settings=settings,
        logs=home.logs.absolute(),
        nodes=config.nodes,
        room=room,
        key=new_key(),
        exposed=joined,
        shared_gpus=shared,
        stops=config.agent.kind == "program",
    )


def _weight_source(config: RunConfig, plan: EnginePlan, learner: LearnerService) -> WeightBroadcast | None:
    if config.publish.via == "storage":
        return None
    settings = plan.settings
    own_gpus = settings.device == "cuda" and not plan.shared_gpus  # NCCL takes no GPU twice
    return WeightBroadcast(learner, settings.tensor_parallel, own_gpus, plan.exposed, settings.request_timeout_s)


async def _same(done: T) -> T:
    return done


async def _shown(progress: Progress, name: str, work: Awaitable[T]) -> T:
    result, _ = await timed(progress, name, work)
    return result


async def _ray(
    stack: AsyncExitStack, config: RunConfig, home: Home, say: Callable[[str], None], engines: bool = True, ranks: bool = True
) -> None:
    await ray_cluster.use(stack, config.ray, home.logs)
    if config.ray.address is not None:
        await asyncio.to_thread(check_machines, config, say, engines, ranks)


def _scratch(stack: AsyncExitStack, home: Home, name: str) -> Path:
    """Return a local folder for temporary files, until the end."""
    try:
        return stack.enter_context(scratch(home.root / "scratch", name))
    except OSError as error:
        raise StorageError(
            f"cannot make a temporary folder below {home.root}: {error}; set home to a folder with room"
        ) from error


def _check_checkpoint(storage: Storage, run: Run, policy: Weights) -> None:
    """Raises DamagedError if the checkpoint of a policy is gone, or differs from what was written.

    On a cloud it is looked for; readers compare its objects.
    """
    try:
        local = storage.local_path(policy.checkpoint)
        if local is None:
            names, stored = storage.read_manifest(policy.checkpoint), set(storage.list(policy.checkpoint))
            if gone := [name for name in names if f"{policy.checkpoint}/{name}" not in stored]:
                raise MissingError(f"{storage.uri(policy.checkpoint)}/{gone[0]} is gone")
            return
        check_whole(local)
        if not (local / HF).is_dir():
            raise MissingError(f"{local} is gone")
    except (DamagedError, MissingError) as error:
        raise damaged_checkpoint(storage, run, policy, error) from error
