"""Kernels for the agents that cells call."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from nbrl.agent.budget import ChildBudget
from nbrl.agent.children.children import Children, OpenedChild
from nbrl.agent.episode import Task
from nbrl.agent.policy import Policy
from nbrl.agent.settings import AgentSettings
from nbrl.agent.tokens.tokenizer import Renderer
from nbrl.agent.tools.simulated import SimulatedQuestion
from nbrl.tasks.rollout.notebooks import Notebooks, SandboxedKernel, WorkingFolder


def kernels_at_once(agent: AgentSettings, episodes: int) -> int:
    """Return how many kernels so many episodes at once may hold: at each depth of their children as many as they do."""
    return episodes * (1 + (agent.children.depth if agent.children is not None else 0))


class ChildKernels:
    """Kernels of children. Each depth has places of its own, as many as there are episodes: those that wait for a child hold
    nothing that it waits for.
    """

    def __init__(self, notebooks: Notebooks, agent: AgentSettings, episodes: int) -> None:
        self._notebooks = notebooks
        self._places = [asyncio.Semaphore(episodes) for _ in range(agent.children.depth if agent.children is not None else 0)]

    def of(
        self,
        task: Task,
        policy: Policy,
        tokenizer: Renderer,
        settings: AgentSettings,
        asked: SimulatedQuestion | None = None,
    ) -> Children | None:
        """Return the children of a trajectory; None where the settings have none."""
        if settings.children is None:
            return None

        def open_kernel(children: Children | None, depth: int) -> AbstractAsyncContextManager[OpenedChild]:
            return self._opened(task, children, depth, asked)

        return Children(task, policy, tokenizer, settings, open_kernel, ChildBudget(settings.children))

    @asynccontextmanager
    async def _opened(
        self, task: Task, children: Children | None, depth: int, asked: SimulatedQuestion | None
    ) -> AsyncIterator[OpenedChild]:
        async with (
            self._places[depth - 1],
            self._notebooks.new(task.environment, task.ability, asked=asked, children=children) as (kernel, toolbox),
        ):
            yield OpenedChild(SandboxedKernel(kernel, children), toolbox, WorkingFolder(kernel.files))
