"""A runner as an actor of Ray."""

from collections.abc import Awaitable, Callable
from typing import Any

import ray

from nbrl.infra import own_code
from nbrl.infra.process.garbage import collect_rarely
from nbrl.tasks.rollout.plan import RunnerPlan
from nbrl.tasks.rollout.runner import Runner


class RemoteQueue:
    """The queue's actor, with the methods of its object. It is looked up by its name, because Ray warns of handles among the
    arguments of actors that it may start again.
    """

    def __init__(self, name: str) -> None:
        self.actor: Any = ray.get_actor(name)

    def __getattr__(self, method: str) -> Callable[..., Awaitable[Any]]:
        call = getattr(self.actor, method).remote

        async def called(*arguments: Any) -> Any:
            return await call(*arguments)

        return called


class PooledRunner(Runner):
    """A runner that reports its start to the queue, which then knows that what an earlier one had is not done."""

    def __init__(self, plan: RunnerPlan, number: int, queue: str) -> None:
        own_code.install()
        collect_rarely()  # else collections look again and again at all that was imported and at the tokens of a rollout
        remote: Any = RemoteQueue(queue)
        super().__init__(plan, number, remote)
        remote.actor.register_runner.remote(number, self._life)
