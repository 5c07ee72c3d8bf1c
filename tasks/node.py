"""Makes a coroutine a node of the DAG: a Prefect task whose persisted result is found again by what made it."""

import hashlib
from collections.abc import Callable
from typing import Any, TypeVar

from prefect import task
from prefect.context import TaskRunContext

from tasks.scope import Artifact, Scope

F = TypeVar("F", bound=Callable[..., Any])


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


def node(function: F) -> F:
    """A node that, once finished, is never done again. It takes a `scope` and returns a reference, never data."""
    return task(function, name=function.__name__, persist_result=True, cache_key_fn=result_key, result_serializer="json")  # type: ignore[return-value]


def act(function: F) -> F:
    """A node with an effect outside the storage (an engine, a tracking server): done again whenever the iteration is."""
    return task(function, name=function.__name__, persist_result=False)  # type: ignore[return-value]
