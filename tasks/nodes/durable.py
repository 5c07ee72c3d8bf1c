"""Makes a coroutine a node of the DAG: a Prefect task whose persisted result is found again by what made it."""

import hashlib
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from prefect import Task, task
from prefect.context import TaskRunContext

from nbrl.tasks.runs.scope import Artifact, Scope

P = ParamSpec("P")
T = TypeVar("T")


def _inputs(value: object) -> list[str]:
    if isinstance(value, Artifact):
        return [value.digest]
    if isinstance(value, list | tuple):
        return [part for item in value for part in _inputs(item)]
    if isinstance(value, int | float | str):
        return [repr(value)]
    return []


def result_key(context: TaskRunContext, parameters: dict[str, Any]) -> str:
    """Key of a node's result: run, iteration, node, configuration and the digests of its inputs; never a flow-run id."""
    scope: Scope = parameters["scope"]
    inputs = hashlib.sha256("|".join(p for value in parameters.values() for p in _inputs(value)).encode()).hexdigest()[:16]
    return f"{scope.run_id}-{scope.iteration:06d}-{context.task.name}-{scope.config_digest[:16]}-{inputs}"


def node(function: Callable[P, Coroutine[Any, Any, T]]) -> Task[P, Coroutine[Any, Any, T]]:
    """A node that, once finished, is never done again. It takes a `scope` and returns a reference, never data."""
    return task(name=function.__name__, persist_result=True, cache_key_fn=result_key, result_serializer="json")(function)


def act(function: Callable[P, Coroutine[Any, Any, T]]) -> Task[P, Coroutine[Any, Any, T]]:
    """A node with an effect outside the storage (an engine, a tracking server): done again whenever the iteration is."""
    return task(name=function.__name__, persist_result=False)(function)
