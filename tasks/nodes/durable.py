"""Makes a function a node of the DAG: a timed Prefect task whose result, once it finished, is found again on the storage.

A node takes the services, a scope and the artifacts of earlier nodes. It returns a reference to data, never data. A node that
awaits nothing is a plain function and runs in a thread, so that nodes can run concurrently.
"""

import asyncio
import functools
import hashlib
import inspect
import re
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast

from prefect import State, Task, task
from prefect.cache_policies import NO_CACHE
from prefect.context import TagsContext
from prefect.states import Completed

from nbrl.infra.gpu import gpus
from nbrl.infra.process.identity import processor_seconds
from nbrl.tasks.runs import results
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.scope import Artifact, Scope
from nbrl.tasks.services.progress import timed
from nbrl.tasks.services.services import Services

SAMPLING, LEARNING = ("rollout", "publish", "evaluate"), ("update",)
P = ParamSpec("P")
T = TypeVar("T")
Function = Callable[..., Coroutine[Any, Any, Any]]


def gpus_of(node: str, config: RunConfig, present: int | None = None) -> int:
    """Return the number of GPUs that a node uses: all of the engines, or one for each rank of the learner; none on other nodes.

    `present` are those of this machine, by which `auto` chooses.
    """
    present = gpus() if present is None else present
    if node in SAMPLING:
        used = config.engine.device == "cuda" or (config.engine.device == "auto" and present > 0)
        return config.engine.count * config.engine.tensor_parallel if used else 0
    if node in LEARNING or (node == "advantage" and config.learner_estimates):
        used = config.update.device == "cuda" or (config.update.device == "auto" and present > 0)
        return config.update.workers if used else 0
    return 0


def metrics(node: str, seconds: float, processor: float, used: int) -> Mapping[str, float]:
    """Return processor-seconds, and GPU-seconds where GPUs were used: they are held for the whole of the node's wall time."""
    gpu = {f"gpu/{node}": seconds * used} if used else {}
    return {f"cpu/{node}": max(0.0, processor), **gpu}


class NodeTask(Generic[P, T]):
    """A node that runs as a Prefect task when called.

    A returned artifact has the seconds of this call as `time/<node>`, the processor-seconds of this process and all below it as
    `cpu/<node>`, in which what ran beside the node counts too, and `gpu/<node>` where it used GPUs.
    """

    def __init__(self, prefect_task: Task[Any, Any], function: Function) -> None:
        self._task, self._function = prefect_task, function

    async def __call__(self, services: Services, /, *args: P.args, **kwargs: P.kwargs) -> T:
        name, before = self._task.name, await asyncio.to_thread(processor_seconds)
        with TagsContext(current_tags=set()):  # Prefect would ask its server for limits on each tag before the task starts
            result, seconds = await timed(services.progress, name, self._task(services, *args, **kwargs))
        if isinstance(result, State):  # Prefect returns a state that a task chose as it is
            result = await result.aresult()
        if not isinstance(result, Artifact):
            return cast(T, result)
        processor = await asyncio.to_thread(processor_seconds) - before
        return cast(T, result.timed(name, seconds, metrics(name, seconds, processor, gpus_of(name, services.config))))

    async def alone(self, services: Services, /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run the node without Prefect: its result is neither kept nor timed."""
        return cast(T, await self._function(services, *args, **kwargs))


def durable(
    function: Callable[Concatenate[Services, Scope, P], Artifact]
    | Callable[Concatenate[Services, Scope, P], Coroutine[Any, Any, Artifact]],
) -> NodeTask[Concatenate[Scope, P], Artifact]:
    """Make a node that never runs again once it finished, as long as what it made is there."""
    work = _awaitable(function)

    @functools.wraps(function)
    async def once(services: Services, scope: Scope, *args: Any) -> Any:
        node, inputs = function.__name__, results.inputs_of(scope, args)
        key = results.key_of(scope, node, inputs)
        steps = results.node_steps(services.storage, scope, services.cache, services.progress.say)
        if key in await asyncio.to_thread(services.reads.keys_of, scope):
            record = await asyncio.to_thread(steps.find, key, f"{scope.title}: {node}")
            if record is not None:
                return Completed(name="Cached", data=record.artifact)
        artifact = await work(services, scope, *args)
        kept = await asyncio.to_thread(steps.keep, key, results.result_of(scope, node, inputs, artifact))
        return kept.artifact

    return NodeTask(_task(once), work)


def effect(function: Callable[Concatenate[Services, P], Coroutine[Any, Any, T]]) -> NodeTask[P, T]:
    """Make a node that acts outside the storage (on an engine, a tracking server): it runs again whenever the iteration does."""
    return NodeTask(_task(function), function)


def _task(function: Function) -> Task[Any, Any]:
    """Return a Prefect task whose runs are named by what they do, such as `rollout round 0` or `evaluate after 3 updates`."""
    name, parameters = function.__name__, inspect.signature(function).parameters

    title = name
    if "scope" in parameters:  # a template of Prefect's
        title += " round {round_}" if "round_" in parameters else " {scope.moment}"
    return task(name=name, task_run_name=title, persist_result=False, cache_policy=NO_CACHE)(function)


def _awaitable(function: Callable[..., Any]) -> Function:
    if inspect.iscoroutinefunction(function):
        return function

    @functools.wraps(function)
    async def in_thread(*args: Any, **kwargs: Any) -> Any:
        return await asyncio.to_thread(function, *args, **kwargs)

    return in_thread


def slug(kind: str, name: str) -> str:
    """Return a key that Prefect takes (small letters, digits, dashes), another one for each name."""
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return f"{kind}-{plain}" if plain == name else f"{kind}-{plain}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"
