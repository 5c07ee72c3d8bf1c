"""Makes a function a node of the DAG: a timed Prefect task whose result, once it finished, is found again on the storage.

Prefect, whose import takes a second, is imported by the first node that is called: `here` runs one without it.

A node takes the services, a scope and the artifacts of earlier nodes. It returns a reference to data, never data. A node that
awaits nothing is a plain function and runs in a thread, so that nodes can run concurrently.
"""

import asyncio
import functools
import hashlib
import inspect
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, cast

from nbrl.infra.gpu import gpus
from nbrl.infra.process.identity import processor_seconds
from nbrl.tasks.runs import results
from nbrl.tasks.runs.config import RunConfig
from nbrl.tasks.runs.results import NodeResult
from nbrl.tasks.runs.scope import Artifact, Scope
from nbrl.tasks.runs.steps import StepStore
from nbrl.tasks.services.progress import timed
from nbrl.tasks.services.services import Services

if TYPE_CHECKING:
    from prefect import Task

SAMPLING, LEARNING = ("rollout", "branch", "publish", "evaluate"), ("teach", "update")
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

    def __init__(self, function: Function, find: Function, make: Function) -> None:
        self._function, self._find, self._make = function, find, make

    @cached_property
    def _task(self) -> "Task[Any, Any]":
        """Return a Prefect task whose runs are named by what they do, such as `rollout round 0` or `evaluate after 3 updates`."""
        from prefect import task
        from prefect.cache_policies import NO_CACHE
        from prefect.states import Completed

        @functools.wraps(self._function)
        async def shown(*args: Any, **kwargs: Any) -> Any:
            if (found := await self._find(*args, **kwargs)) is not None:
                return Completed(name="Cached", data=found)
            return await self._make(*args, **kwargs)

        name, parameters = self._function.__name__, inspect.signature(self._function).parameters
        title = name
        if "scope" in parameters:  # a template of Prefect's
            title += " round {round_}" if "round_" in parameters else " {scope.moment}"
        return task(name=name, task_run_name=title, persist_result=False, cache_policy=NO_CACHE)(shown)

    async def __call__(self, services: Services, /, *args: P.args, **kwargs: P.kwargs) -> T:
        from prefect import State
        from prefect.context import TagsContext

        async def run() -> Any:
            with TagsContext(current_tags=set()):  # Prefect would ask its server for limits on each tag before the task starts
                result = await self._task(services, *args, **kwargs)
            # Prefect returns a state that a task chose as it is.
            return await result.aresult() if isinstance(result, State) else result

        return cast(T, await self._timed(services, run()))

    async def found(self, services: Services, /, *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Return what the node made of these before, or None."""
        return cast(T | None, await self._find(services, *args, **kwargs))

    async def here(self, services: Services, /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run the node without Prefect; all else is as when it is called."""

        async def run() -> Any:
            found = await self._find(services, *args, **kwargs)
            return await self._make(services, *args, **kwargs) if found is None else found

        return cast(T, await self._timed(services, run()))

    async def alone(self, services: Services, /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run the node without Prefect: its result is neither kept nor timed."""
        return cast(T, await self._function(services, *args, **kwargs))

    async def _timed(self, services: Services, run: Awaitable[Any]) -> Any:
        name, before = self._function.__name__, await asyncio.to_thread(processor_seconds)
        result, seconds = await timed(services.progress, name, run)
        if not isinstance(result, Artifact):
            return result
        processor = await asyncio.to_thread(processor_seconds) - before
        return result.timed(name, seconds, metrics(name, seconds, processor, gpus_of(name, services.config)))


def durable(
    function: Callable[Concatenate[Services, Scope, P], Artifact]
    | Callable[Concatenate[Services, Scope, P], Coroutine[Any, Any, Artifact]],
) -> NodeTask[Concatenate[Scope, P], Artifact]:
    """Make a node that never runs again once it finished, as long as what it made is there."""
    node, work = function.__name__, _awaitable(function)

    def place(services: Services, scope: Scope, args: tuple[Any, ...]) -> tuple[StepStore[NodeResult], str, list[str]]:
        inputs = results.inputs_of(scope, args)
        steps = results.node_steps(services.storage, scope, services.cache, services.progress.say)
        return steps, results.key_of(scope, node, inputs), inputs

    async def find(services: Services, scope: Scope, *args: Any) -> Artifact | None:
        steps, key, _ = place(services, scope, args)
        if key not in await asyncio.to_thread(services.reads.keys_of, scope):
            return None
        record = await asyncio.to_thread(steps.find, key, f"{scope.title}: {node}")
        return None if record is None else record.artifact

    async def make(services: Services, scope: Scope, *args: Any) -> Artifact:
        steps, key, inputs = place(services, scope, args)
        artifact = await work(services, scope, *args)
        kept = await asyncio.to_thread(steps.keep, key, results.result_of(scope, node, inputs, artifact))
        return kept.artifact

    return NodeTask(work, find, make)


def effect(function: Callable[Concatenate[Services, P], Coroutine[Any, Any, T]]) -> NodeTask[P, T]:
    """Make a node that acts outside the storage (on an engine, a tracking server): it runs again whenever the iteration does."""

    async def find(*_: Any, **__: Any) -> None:
        return None

    return NodeTask(function, find, function)


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
