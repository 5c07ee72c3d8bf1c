"""Runs one episode: a kernel with the question's files, the agent until it ends, and the files that it was asked for."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from nbrl.agent.children.children import Children
from nbrl.agent.direct import DirectEpisode
from nbrl.agent.episode import Episode, Task
from nbrl.agent.errors import AgentError
from nbrl.agent.settings import AgentSettings
from nbrl.agent.tokens.tokenizer import Renderer
from nbrl.agent.tools.base import Toolbox
from nbrl.agent.tools.sessions import Asked, GuardedSession
from nbrl.agent.tools.simulated import SimulatedQuestion
from nbrl.agent.trajectory import ProducedFile, Status, Trajectory
from nbrl.agent.trunk import Trunk, seeding
from nbrl.sandbox.errors import SandboxError
from nbrl.sandbox.kernel import SandboxKernel
from nbrl.tasks.rollout.children import ChildKernels
from nbrl.tasks.rollout.notebooks import Notebooks, SandboxedKernel
from nbrl.tasks.rollout.plan import RoundPlan, RunnerPlan
from nbrl.tasks.rollout.program_episode import Programs, take_calls
from nbrl.tasks.rollout.samplers import Sampler
from nbrl.tasks.rollout.sessions import SessionPool

COLLECTED_BYTES = 2 << 20  # of one file; it is stored with the trajectory
PLAYS = 3  # of an episode, before the absence of its engine costs an attempt
MISSED = 0.05  # of its time, without which an episode may have missed its deadline


@dataclass(frozen=True)
class RecordedTrunk:
    """The trajectory that a branch continues, how many of its steps come first, and the seed of the next action."""

    trajectory: Trajectory
    steps: int
    seed: int


@dataclass(frozen=True)
class HiddenParts:
    """The parts of a task that the agent does not see.

    The files `attached`, by name their SHA-256, are in the working folder from the beginning; those of the names in `collect` are
    kept at the end. `answers` are those that a simulated search may use; empty with any other. `asked` is the question of the
    session of its environment, if it has one. `max_steps` and `deadline_s` replace the agent's, if any. A branch begins with a
    `trunk`.
    """

    attached: Mapping[str, str]
    collect: Sequence[str]
    answers: tuple[str, ...]
    asked: Asked | None = None
    max_steps: int | None = None
    deadline_s: float | None = None
    trunk: RecordedTrunk | None = None

    def limits(self, plan: RoundPlan, agent: AgentSettings) -> AgentSettings:
        """Return the settings of the episode; a round's limit of steps that is lower holds."""
        ours = {"max_steps": self.max_steps, "deadline_s": self.deadline_s}
        limits = agent.model_copy(update={name: value for name, value in ours.items() if value is not None})
        if plan.max_steps is not None and (self.max_steps is None or plan.max_steps < self.max_steps):
            return limits.model_copy(update={"max_steps": plan.max_steps})
        return limits


class Episodes:
    """Runs episodes, any number at once, each in a kernel of its own."""

    def __init__(
        self, plan: RunnerPlan, notebooks: Notebooks, tokenizer: Renderer, sessions: SessionPool, programs: Programs | None = None
    ) -> None:
        """With `programs` these are the agents, in place of notebooks."""
        self._plan, self._notebooks, self._tokenizer, self._sessions = plan, notebooks, tokenizer, sessions
        self._programs = programs
        self._kernels = ChildKernels(notebooks, plan.agent, plan.rollout.episodes_per_runner)

    async def play(self, task: Task, hidden: HiddenParts, new: Callable[[], Sampler], plan: RoundPlan) -> Trajectory:
        """Run one episode to its end; an infrastructure fault is a failed trajectory, and never raised.

        An episode that lost time because its engine was away or out of reach is played again, where its deadline passed.
        """
        limits = hidden.limits(plan, self._plan.agent)
        for _ in range(PLAYS):
            sampler = new()
            try:
                trajectory = await self._once(task, hidden, sampler, plan, limits)
                if sampler.routes is not None:
                    trajectory.routes = sampler.routes.of(trajectory)
            except (SandboxError, AgentError) as error:
                return failed(task, str(error))
            except Exception as error:  # no fault of one trajectory may end the others
                return failed(task, f"{type(error).__name__}: {error}")
            if not _ran_out_of_time(trajectory, limits.deadline_s):
                return trajectory
            away = await sampler.was_away()
            if not away and sampler.missed_s() < MISSED * limits.deadline_s:
                return trajectory
        # What is only slow each time is slow by itself.
        return failed(task, f"its engine was away each of {PLAYS} times that its deadline passed") if away else trajectory

    def price(self) -> str:
        """Return, once, what programs cost that send their turns otherwise than they were; empty if nothing."""
        return "" if self._programs is None else self._programs.reading.price()

    async def _once(
        self, task: Task, hidden: HiddenParts, sampler: Sampler, plan: RoundPlan, limits: AgentSettings
    ) -> Trajectory:
        if plan.direct:
            return await DirectEpisode(task, sampler.policy, self._tokenizer, limits).run()
        async with self._sessions.session(hidden.asked, task.seed) as session:
            if session is not None and (opening := await session.observe()):
                task = replace(task, question=f"{task.question}\n\n{opening}")
            simulated = SimulatedQuestion(task.question, hidden.answers, task.seed, plan.trained) if hidden.answers else None
            trajectory = await self._in_kernel(task, hidden, sampler, simulated, limits, session)
            if session is not None and trajectory.status is not Status.FAILED:
                trajectory.outcome = await session.outcome(trajectory)
        return trajectory

    async def _in_kernel(
        self,
        task: Task,
        hidden: HiddenParts,
        sampler: Sampler,
        simulated: SimulatedQuestion | None,
        limits: AgentSettings,
        session: GuardedSession | None,
    ) -> Trajectory:
        """Run the agent in a kernel of its own: a notebook, or the program that acts in its place."""
        name, ability, children = task.environment, task.ability, None
        if self._programs is None:
            children = self._kernels.of(task, sampler.policy, self._tokenizer, limits, simulated)
            opened = self._notebooks.new(name, ability, asked=simulated, session=session, children=children)
        else:
            opened = self._notebooks.bare(name, ability, asked=simulated, session=session)
        async with opened as (kernel, toolbox):
            await asyncio.to_thread(self._attach, kernel, hidden.attached)
            if self._programs is not None:
                trajectory = await self._programs.play(task, sampler, kernel, toolbox, limits, session)
            else:
                trajectory = await self._in_notebook(task, hidden.trunk, sampler, kernel, toolbox, limits, session, children)
                await toolbox.end()  # its kernel ends in the background, and a thread that a cell left there could act on
                take_calls(toolbox, trajectory.steps)
            trajectory.files += await asyncio.to_thread(_collect, kernel, hidden.collect)
        return trajectory

    async def _in_notebook(
        self,
        task: Task,
        recorded: RecordedTrunk | None,
        sampler: Sampler,
        kernel: SandboxKernel,
        toolbox: Toolbox,
        limits: AgentSettings,
        session: GuardedSession | None,
        children: Children | None,
    ) -> Trajectory:
        """Run the notebook agent: from the beginning, or from where a recorded trunk ends."""
        wired, policy, trunk = SandboxedKernel(kernel, children), sampler.policy, None
        if self._plan.rollout.branch is not None:  # a trajectory and its branches draw the same random numbers
            await kernel.execute(seeding(task.seed), silent=True)
        if recorded is not None:
            trunk = policy = Trunk(recorded.trajectory, recorded.steps, recorded.seed, sampler.policy)
            trunk.play_tools(toolbox, () if session is None else {tool.name for tool in session.tools})
        made = await Episode(task, policy, wired, toolbox, self._tokenizer, limits, trunk, session, children).run()
        return made if trunk is None else trunk.as_branch(made)

    def _attach(self, kernel: SandboxKernel, files: Mapping[str, str]) -> None:
        """Put the question's files into the working folder."""
        for name, digest in files.items():
            kernel.files.put(name, self._plan.storage.read_bytes(f"{self._plan.attached}/{digest}", digest))


def _ran_out_of_time(trajectory: Trajectory, deadline_s: float) -> bool:
    """Return whether the deadline ended it or a child of it, or cut its last cell short."""
    late = trajectory.answer is None and trajectory.seconds >= deadline_s
    return late or Status.TIMEOUT in (trajectory.status, *(child.status for child in trajectory.children))


def _collect(kernel: SandboxKernel, names: Sequence[str]) -> list[ProducedFile]:
    """Return those of the files that are in the working folder, are regular and not too large."""
    files = []
    for name in names:
        with suppress(SandboxError):
            data = kernel.files.read(name)
            if len(data) <= COLLECTED_BYTES:
                files.append(ProducedFile(path=name, data=data))
    return files


def failed(task: Task, reason: str) -> Trajectory:
    """Return the trajectory of a task that never got a kernel."""
    return task.ended(Status.FAILED, reason)
