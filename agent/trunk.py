"""The recorded beginning of a trajectory, played again in a clean kernel so that another policy call can go on from there.

Its actions are the recorded ids and its tools give the recorded answers. Each prompt, output and notepad must be the recorded
one: then the state is believed to be that of the trajectory, and a branch begins.
"""

import json
from collections.abc import Collection
from typing import Any

from nbrl.agent.errors import AgentError
from nbrl.agent.messages import Prompt
from nbrl.agent.policy import Generation, Policy
from nbrl.agent.tools.base import Parameter, Tool, Toolbox
from nbrl.agent.tools.replay import Replay
from nbrl.agent.trajectory import Node, Step, Trajectory

CUT = "it is longer than"  # how the fault of an action begins that was not sampled to its end
PLAYABLE = ("ok", "error", "none")


def playable(step: Step) -> bool:
    """Return whether a recorded step can be played again: its cell ended by itself, and all its calls are recorded whole."""
    return step.kind != "reply" and step.cell_status in PLAYABLE and not step.unrecorded_calls and _whole(step)


def _whole(step: Step) -> bool:
    return all(call.complete for call in step.tool_calls)


def seeding(seed: int) -> str:
    """Return the cell that makes the random numbers of a kernel those of a seed, of what it has imported."""
    return (
        f"import random, sys\nrandom.seed({seed})\n"
        f"if 'numpy.random' in sys.modules: sys.modules['numpy.random'].seed({seed % 2**32})\ndel random, sys"
    )


class Trunk:
    """The first steps of `recorded`: a Policy until they are played, which then asks `policy`, and a Watcher that compares.

    `seed` is that of the first new action.
    """

    def __init__(self, recorded: Trajectory, steps: int, seed: int, policy: Policy) -> None:
        self._recorded, self._steps, self._seed, self._policy = recorded, steps, seed, policy
        self._sampled = {node.step: node for node in recorded.sampled()}
        self._played = 0
        self._fault = ""

    @property
    def over(self) -> bool:
        """Return whether all recorded steps were played."""
        return self._played >= self._steps

    async def generate(self, prompt: Prompt, max_tokens: int, seed: int) -> Generation:
        """Return the recorded action, and after the trunk that of the policy. Raises AgentError where it cannot be played."""
        if self._fault:
            raise AgentError(f"the branch is not made: {self._fault}")
        if self.over:
            return await self._policy.generate(prompt, max_tokens, self._seed + self._played)
        number, node = self._played, self._sampled[self._played]
        if prompt.token_ids != self._recorded.path(node.parent):
            raise AgentError(f"the branch is not made: step {number + 1} is asked otherwise than it was")
        cut = self._recorded.steps[number].malformed.startswith(CUT)
        return Generation(node.token_ids, node.logprobs, node.weights_version, "length" if cut else "stop")

    def asked(self, index: int, tokens: int) -> None:
        """Do nothing."""

    def acted(self, index: int, step: Step) -> None:
        """Do nothing."""

    def observed(self, index: int, step: Step) -> None:
        """Compare a step that was played with the recorded one."""
        if not self.over and _seen(step) != _seen(self._recorded.steps[index]):
            self.differs(f"step {index + 1} has another output or notepad than it had")
        self._played = index + 1

    def play_tools(self, toolbox: Toolbox, stateful: Collection[str]) -> None:
        """Let tools give the recorded answers until the trunk is over; `stateful` ones are called, and must give them."""
        cut = self._recorded.model_copy(update={"steps": self._recorded.steps[: self._steps]})
        recorded = Replay([cut], toolbox.tools.values()).tools
        for name, tool in list(toolbox.tools.items()):
            toolbox.tools[name] = _TrunkTool(self, tool, recorded[name], name in stateful)

    def differs(self, what: str) -> None:
        """Note why the branch cannot be made."""
        self._fault = self._fault or what

    def as_branch(self, made: Trajectory) -> Trajectory:
        """Return the trajectory with its recorded actions as what they are to it: a part of its prompts."""
        nodes = [_unsampled(node) if node.kind == "sampled" and node.step < self._steps else node for node in made.nodes]
        return made.model_copy(update={"nodes": nodes})


class _TrunkTool:
    """A tool that gives recorded answers until the trunk is over."""

    def __init__(self, trunk: Trunk, tool: Tool, recorded: Tool, stateful: bool) -> None:
        self.name, self.summary, self.details, self.returns = tool.name, tool.summary, tool.details, tool.returns
        self.parameters: tuple[Parameter, ...] = tool.parameters
        self.schema: dict[str, Any] = tool.schema
        self._trunk, self._tool, self._recorded, self._stateful = trunk, tool, recorded, stateful

    async def call(self, arguments: dict[str, Any]) -> Any:
        if self._trunk.over:
            return await self._tool.call(arguments)
        if not self._stateful:
            return await self._recorded.call(arguments)
        answers = [await _answer(each, arguments) for each in (self._tool, self._recorded)]
        if answers[0][0] != answers[1][0]:
            self._trunk.differs(f"{self.name} gives another answer than it gave")
        if isinstance(answers[0][1], Exception):
            raise answers[0][1]
        return answers[0][1]


async def _answer(tool: Tool, arguments: dict[str, Any]) -> tuple[str, Any]:
    """Return the answer of a tool as text to compare, and itself or its exception."""
    try:
        result = await tool.call(arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}", error
    return json.dumps(result, sort_keys=True, default=str), result


def _seen(step: Step) -> tuple[Any, ...]:
    """Return what a step shows of the state that it left."""
    calls = [(call.name, call.arguments, call.result, call.ok) for call in step.tool_calls]
    return step.kind, step.code, step.malformed, step.cell_status, step.outputs, step.observation, step.notepad, calls


def _unsampled(node: Node) -> Node:
    return Node(parent=node.parent, kind="action", step=node.step, token_ids=node.token_ids)
