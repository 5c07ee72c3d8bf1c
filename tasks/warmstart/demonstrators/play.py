"""Plays demonstrators through the real loop.

A demonstration is a trajectory made by `Episode` itself: a policy trained on its sampled nodes sees, at inference, the very token
ids that it was trained on.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Event

from nbrl.agent.episode import Episode, Task
from nbrl.agent.grammar import Grammar
from nbrl.agent.kernels.inline import InlineKernel
from nbrl.agent.kernels.prelude import prelude
from nbrl.agent.policies.recorded import ScriptedPolicy
from nbrl.agent.policy import Policy
from nbrl.agent.settings import AgentSettings
from nbrl.agent.tokens.tokenizer import ChatTokenizer
from nbrl.agent.tools.base import Tool, Toolbox
from nbrl.agent.tools.sessions import GuardedSession
from nbrl.agent.trajectory import Trajectory
from nbrl.tasks.errors import StoppedError


@dataclass(frozen=True)
class Move:
    """A thought and a cell. Without code the action is malformed: thinking alone."""

    think: str
    code: str = ""

    def text(self, grammar: Grammar) -> str:
        return grammar.write(self.think, self.code) if self.code else f"<{grammar.think_tag}>{self.think}</{grammar.think_tag}>"


@dataclass(frozen=True)
class DemonstrationAgent:
    """The setting of demonstrators: the agent of the training that follows, its tokenizer, tools and added instruction.

    `environment` is the one that gave tools and instruction, if one did; `session` is that of the question.
    Once `cancelled`, nothing more is played.
    """

    agent: AgentSettings
    tokenizer: ChatTokenizer
    tools: tuple[Tool, ...] = ()
    instruction: str = ""
    environment: str = ""
    session: GuardedSession | None = None
    cancelled: Event = field(default_factory=Event)

    def check(self) -> None:
        """Raises StoppedError once it is cancelled."""
        if self.cancelled.is_set():
            raise StoppedError("the recording of demonstrations was cancelled")


@dataclass(frozen=True)
class DemonstratedQuestion:
    """A question as a demonstrator gets it."""

    id: str
    question: str
    ability: str


async def play(asked: DemonstratedQuestion, moves: Sequence[Move], stage: DemonstrationAgent) -> Trajectory:
    """Play moves that were chosen before."""
    texts = [move.text(stage.agent.grammar) for move in moves]
    return await act(asked, ScriptedPolicy(texts, stage.tokenizer), stage)


async def act(asked: DemonstratedQuestion, policy: Policy, stage: DemonstrationAgent) -> Trajectory:
    """Play a policy that writes trusted code: its cells run in this process."""
    stage.check()
    toolbox = Toolbox(stage.tools)
    kernel = InlineKernel(prelude(stage.tools), toolbox.call)
    task = Task(asked.id, asked.id, 0, asked.question, asked.ability, 0, instruction=stage.instruction)
    return await Episode(task, policy, kernel, toolbox, stage.tokenizer, stage.agent, session=stage.session).run()
