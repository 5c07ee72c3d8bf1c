"""The reward of a trajectory, by the task's own hooks; and what is to blame where they raise."""

import asyncio
import copy
import math
from typing import Any

from verifiers.v1.utils.decorators import invoke

from .errors import TasksetRefusalError, TooLongError, in_words, is_infrastructure
from .traces import complete, new_trace

PLAIN = ("", "0")


class NeedsRuntimeError(Exception):
    """A hook of the task uses a container."""


class NoRuntime:
    """The container that there is none of. It has no files; whatever else is done with it raises NeedsRuntimeError."""

    async def read(self, path: str) -> bytes:
        raise FileNotFoundError(path)

    def __getattr__(self, name: str) -> Any:
        raise NeedsRuntimeError(f"a hook of the task uses a container (runtime.{name}), and there is none here")


async def prepared(task: Any, seed: int) -> Any:
    """Return the trace of a trajectory that begins, after the task's own preparation."""
    trace = new_trace(task, seed)
    await invoke(task.setup, {"trace": trace, "runtime": NoRuntime()})
    return trace


async def scored(task: Any, trace: Any) -> dict[str, Any]:
    """Return reward and metrics of a complete trace. Where a hook raises and can score a plain answer, the trajectory is why."""
    seed = trace.info["seed"]
    try:
        return await _score(task, trace)
    except (Exception, TooLongError) as error:
        if is_infrastructure(error) or not await _scores_plain(task, seed):
            raise
        return {"reward": 0.0, "metrics": {"unscorable": 1.0}}


async def check_scores(task: Any) -> None:
    """Raises TasksetRefusalError unless the task begins and its hooks score a plain answer."""
    try:
        for answer in PLAIN:
            trace = await prepared(task, 0)
            complete(trace, task, [], [], answer, "answered")
            try:
                await _score(task, trace)
                return
            except NeedsRuntimeError:
                raise
            except Exception:
                if answer == PLAIN[-1]:
                    raise
    except (Exception, TooLongError) as error:
        raise TasksetRefusalError(f"its first task cannot be begun and scored: {in_words(error)}") from error


async def _score(task: Any, trace: Any) -> dict[str, Any]:
    await invoke(task.finalize, {"trace": trace, "runtime": NoRuntime()})
    await task.score(trace, NoRuntime())
    missing = [name for name, reward in trace.rewards.items() if reward is None]
    if missing or not math.isfinite(trace.reward):
        raise ValueError(f"the reward {missing[0]} has no value" if missing else f"the reward is {trace.reward}")
    metrics = {name: reward.score for name, reward in trace.rewards.items()}
    metrics |= {name: value for name, value in trace.metrics.items() if value is not None}
    return {"reward": trace.reward, "metrics": {name: value for name, value in metrics.items() if math.isfinite(value)}}


async def _scores_plain(task: Any, seed: int) -> bool:
    for answer in PLAIN:
        try:
            trace = await prepared(copy.copy(task), seed)
            complete(trace, task, [], [], answer, "answered")
            await _score(task, trace)
            return True
        except asyncio.CancelledError:
            raise
        except (Exception, TooLongError):
            continue
    return False
