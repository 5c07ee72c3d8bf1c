"""Calls of the queue and the runners of a pool, as awaitables: any of them may end or not answer."""

import asyncio
from typing import Any

from ray.exceptions import RayActorError

from nbrl.tasks.errors import RolloutError

GONE_S = 300.0  # without a sign of any runner, or of the queue, the rollout ends
ANSWER_S = 2.0


async def answer(reference: Any) -> Any:
    """Return what an actor answers."""
    return await reference


async def queue_answer(reference: Any) -> Any:
    """Return what the queue answers. Raises RolloutError if it has ended, or does not answer within GONE_S."""
    try:
        return await asyncio.wait_for(answer(reference), GONE_S)
    except (TimeoutError, RayActorError) as error:
        raise RolloutError(f"the queue of rows for runners ended: {first_line(error) or 'it does not answer'}") from error


async def answers_in_time(references: list[Any]) -> dict[int, Any]:
    """Return the answers of actors by number, without those that do not come within ANSWER_S or are errors."""
    tasks = [asyncio.ensure_future(answer(reference)) for reference in references]
    await asyncio.wait(tasks, timeout=ANSWER_S)
    answers = {}
    for number, task in enumerate(tasks):
        if task.done() and task.exception() is None:
            answers[number] = task.result()
        task.cancel()
    return answers


def first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")
