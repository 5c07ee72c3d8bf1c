"""Makes a function a node of the DAG: a timed, displayed Prefect task whose result is found again by its inputs.

A node takes the services, a `scope` and the artifacts of earlier nodes. It returns a reference to data, never data. A node
that awaits nothing is a plain function and runs in a thread, so that nodes can run concurrently.
"""

import asyncio
import functools
import hashlib
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast

from prefect import Task, task
from prefect.context import TaskRunContext

from nbrl.tasks.runs.scope import Artifact, Scope
from nbrl.tasks.services.progress import timed
from nbrl.tasks.services.services import Services

P = ParamSpec("P")
T = TypeVar("T")


class Node(Generic[P, T]):
    """A node that runs as a Prefect task when called. A returned artifact has the seconds of this call as `time/<node>`."""

    def __init__(self, prefect_task: Task[Any, Any]) -> None:
        self._task = prefect_task

    async def __call__(self, services: Services, /, *args: P.args, **kwargs: P.kwargs) -> T:
        result, seconds = await timed(services.progress, self._task.name, self._task(services, *args, **kwargs))
        return cast(T, result.timed(self._task.name, seconds) if isinstance(result, Artifact) else result)

    async def alone(self, services: Services, /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run the node without Prefect: its result is neither reused nor timed."""
        return cast(T, await self._task.fn(services, *args, **kwargs))


def durable(
    function: Callable[Concatenate[Services, P], Artifact] | Callable[Concatenate[Services, P], Coroutine[Any, Any, Artifact]],
) -> Node[P, Artifact]:
    """Make a node that never runs again once it finished: its result is stored under `result_key`."""
    keep = task(name=function.__name__, persist_result=True, cache_key_fn=result_key, result_serializer="json")
    return Node(keep(_awaitable(function)))


def effect(function: Callable[Concatenate[Services, P], Coroutine[Any, Any, T]]) -> Node[P, T]:
    """Make a node that acts outside the storage (on an engine, a tracking server): it runs again whenever the iteration does."""
    return Node(task(name=function.__name__, persist_result=False)(function))


def _awaitable(function: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    if inspect.iscoroutinefunction(function):
        return function

    @functools.wraps(function)
    async def in_thread(*args: Any, **kwargs: Any) -> Any:
        return await asyncio.to_thread(function, *args, **kwargs)

    return in_thread


def result_key(context: TaskRunContext, parameters: dict[str, Any]) -> str:
    """Key of a node's result, made of run, iteration, node, configuration and the digests of its inputs, but no flow-run id."""
    scope: Scope = parameters["scope"]
    inputs = hashlib.sha256("|".join(p for value in parameters.values() for p in _inputs(value)).encode()).hexdigest()[:16]
    return f"{scope.run_id}-{scope.iteration:06d}-{context.task.name}-{scope.config_digest[:16]}-{inputs}"


def _inputs(value: object) -> list[str]:
    if isinstance(value, Artifact):
        return [value.digest]
    if isinstance(value, list | tuple):
        return [part for item in value for part in _inputs(item)]
    if isinstance(value, int | float | str):
        return [repr(value)]
    return []
