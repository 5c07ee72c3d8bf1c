"""The think-code-observe loop: one task, one policy, one kernel, one trajectory."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from nbrl.agent.context.context import Ask, Context
from nbrl.agent.context.notepad import State, read_state
from nbrl.agent.context.view import Request, read_requests
from nbrl.agent.errors import AgentError, ExhaustedError, RefusedError
from nbrl.agent.grammar import Malformed
from nbrl.agent.kernel import Kernel, Watcher
from nbrl.agent.observation import observe
from nbrl.agent.policy import Generation, Policy
from nbrl.agent.settings import AgentSettings
from nbrl.agent.tokens.tokenizer import Renderer
from nbrl.agent.tools.base import Toolbox, describe
from nbrl.agent.tools.sessions import GuardedSession
from nbrl.agent.trajectory import Node, Status, Step, Trajectory


@dataclass(frozen=True)
class Task:
    """The task of a trajectory. It has no ground truth, which never reaches the agent.

    `instruction` is what its environment adds to the system prompt; `images` are pictures among its files (PNG, JPEG, GIF, WebP),
    which policies that can see get with the question.
    """

    id: str
    group: str
    sample: int
    question: str
    ability: str
    seed: int
    environment: str = ""
    instruction: str = ""
    images: tuple[bytes, ...] = ()

    def ended(
        self,
        status: Status,
        failure: str = "",
        answer: str | None = None,
        nodes: Sequence[Node] = (),
        steps: Sequence[Step] = (),
        started_at: float = 0.0,
        seconds: float = 0.0,
    ) -> Trajectory:
        """Return a trajectory of this task; without nodes and steps, that of an episode that never began."""
        return Trajectory(
            id=self.id,
            group=self.group,
            sample=self.sample,
            question=self.question,
            ability=self.ability,
            environment=self.environment,
            status=status,
            answer=answer,
            failure=failure,
            nodes=list(nodes),
            steps=list(steps),
            started_at=started_at,
            seconds=seconds,
        )


class TailBudget(Protocol):
    """A budget beside that of the agent itself."""

    def render(self) -> str: ...


class ChildCalls(Protocol):
    """The children that the cells of an agent call; `step` is the number of the step whose cell calls from now on.

    None runs longer than until `deadline`, on the monotonic clock.
    """

    step: int
    deadline: float

    @property
    def budget(self) -> TailBudget: ...

    def joined(self, own: Trajectory) -> Trajectory:
        """Return the agent's trajectory with those of its children."""
        ...


class Episode:
    """One run of the loop; single use. `run` always returns a trajectory: what goes wrong is its status.

    Infrastructure faults, which another trajectory would have met too, give status `failed` with the reason; the caller may run
    the task again in a fresh kernel. A prompt that the server refuses after the first step ends it as a full context does.
    """

    def __init__(
        self,
        task: Task,
        policy: Policy,
        kernel: Kernel,
        toolbox: Toolbox,
        tokenizer: Renderer,
        settings: AgentSettings,
        watcher: Watcher | None = None,
        session: GuardedSession | None = None,
        children: ChildCalls | None = None,
    ) -> None:
        self._task, self._policy, self._kernel, self._toolbox = task, policy, kernel, toolbox
        self._tokenizer, self._settings, self._session, self._children = tokenizer, settings, session, children
        system = settings.render_system_prompt(describe(toolbox.tools.values()), task.instruction)
        budget = None if children is None else children.budget.render
        self._context = Context(tokenizer, settings, system, task.question, task.images, budget)
        self._state = State()
        self._steps: list[Step] = []
        self._watcher = watcher
        self._started_at, self._clock = time.time(), time.monotonic()

    @property
    def opening_tokens(self) -> int:
        """Return the tokens of the system prompt and the task."""
        return self._context.opening_tokens

    async def run(self) -> Trajectory:
        self._started_at, self._clock = time.time(), time.monotonic()
        deadline = self._clock + self._settings.deadline_s
        if self._children is not None:
            self._children.deadline = deadline
        status, failure = Status.STEP_LIMIT, ""
        try:
            for cells in range(self._settings.max_steps):
                ended = await self._step(self._settings.max_steps - cells, deadline)
                if ended is not None:
                    status = ended
                    break
        except AgentError as error:
            # Its first prompt was taken, so what it added is refused; that costs the trajectory and no other one.
            own = isinstance(error, ExhaustedError) or (isinstance(error, RefusedError) and bool(self._steps))
            status, failure = Status.TOKEN_LIMIT if own else Status.FAILED, str(error)
        return self.trajectory(status, failure)

    def trajectory(self, status: Status, failure: str = "") -> Trajectory:
        """Return the trajectory so far, also after the run was cancelled."""
        seconds = time.monotonic() - self._clock
        nodes, steps = self._context.nodes, self._steps
        own = self._task.ended(status, failure, self._state.answer, nodes, steps, self._started_at, seconds)
        return own if self._children is None else self._children.joined(own)

    async def _step(self, steps_left: int, deadline: float) -> Status | None:
        """Take one step, after a summary where one is due; return the status that ends the trajectory, or None."""
        ask = self._context.ask(len(self._steps), steps_left, self._state)
        if ask is not None and ask.kind == "summary":
            ended = await self._summarise(ask, deadline)
            if ended is not None:
                return ended
            ask = self._context.ask(len(self._steps), steps_left, self._state)
        if ask is None:
            return Status.TOKEN_LIMIT
        index, clock = len(self._steps), time.monotonic()
        generation = await self._sample(ask, index, deadline)
        if generation is None:
            return Status.TIMEOUT
        step = self._read(generation)
        self._acted(index, step, clock)
        requests: list[Request] = []
        if step.malformed:
            step.observation = f"Malformed action: {step.malformed}. Nothing was run."
        else:
            requests = await self._run_cell(step, deadline)
        self._observed(index, step)
        if self._toolbox.fault is not None:
            raise self._toolbox.fault
        if self._state.answer is not None:
            return Status.ANSWERED
        if self._session is not None and self._session.done:
            return Status.DONE
        if step.cell_status == "dead":
            return Status.NO_ANSWER
        self._context.observe(index, step, generation, requests)
        return None

    async def _summarise(self, ask: Ask, deadline: float) -> Status | None:
        """Return a step in which the policy sums up what leaves its context. It counts as a step, but not against `max_steps`."""
        index, clock = len(self._steps), time.monotonic()
        generation = await self._sample(ask, index, deadline)
        if generation is None:
            return Status.TIMEOUT
        think, summary = self._settings.grammar.parse_summary(self._text(generation))
        step = Step(kind="summary", think=think, observation=self._context.summarised(index, summary))
        if not step.observation:
            step.malformed = "the summary is empty"
        self._acted(index, step, clock)
        self._observed(index, step)
        return None

    async def _sample(self, ask: Ask, index: int, deadline: float) -> Generation | None:
        """Sample an action from the policy; None at the deadline."""
        clock = time.monotonic()
        if clock >= deadline:
            return None
        if self._watcher is not None:
            self._watcher.asked(index, len(ask.prompt.token_ids))
        try:
            async with asyncio.timeout(deadline - clock):
                generation = await self._policy.generate(ask.prompt, ask.room, self._task.seed + index)
        except TimeoutError:
            return None
        self._context.sampled(index, generation)
        return generation

    def _acted(self, index: int, step: Step, asked: float) -> None:
        step.policy_seconds = time.monotonic() - asked
        self._steps.append(step)
        if self._watcher is not None:
            self._watcher.acted(index, step)

    def _observed(self, index: int, step: Step) -> None:
        step.notepad = self._state.notepad.model_dump_json()
        if self._watcher is not None:
            self._watcher.observed(index, step)

    def _text(self, generation: Generation) -> str:
        return generation.text if generation.text is not None else self._tokenizer.decode(generation.token_ids)

    def _read(self, generation: Generation) -> Step:
        text = self._text(generation)
        if generation.finish == "length":
            return Step(think=text, malformed=f"it is longer than {self._settings.action_tokens} tokens")
        action = self._settings.grammar.parse(text)
        if isinstance(action, Malformed):
            return Step(think=text, malformed=action.reason)
        return Step(think=action.think, code=action.code)

    async def _run_cell(self, step: Step, deadline: float) -> list[Request]:
        """Run the step's cell; return its requests to change the context."""
        if self._session is not None:
            self._session.set_step(len(self._steps) - 1)
        if self._children is not None:
            self._children.step = len(self._steps) - 1
        clock = time.monotonic()
        timeout = max(0.1, min(self._settings.cell_timeout_s, deadline - clock))
        cell = await self._kernel.execute(step.code, timeout, self._context.kernel_message())
        step.kernel_seconds = time.monotonic() - clock
        await self._toolbox.end_cell()
        step.cell_status, step.outputs = cell.status, cell.outputs
        step.observation = observe(cell)
        step.tool_calls, step.unrecorded_calls = self._toolbox.take_calls(), self._toolbox.take_unrecorded()
        self._state = read_state(cell.state, self._state)
        return read_requests(cell.state)
