"""Plays demonstrators through the real loop.

A demonstration is a trajectory made by `Episode` itself: a policy trained on its sampled nodes sees, at inference, the very token
ids that it was trained on.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from threading import Event
from typing import Any

from nbrl.agent.budget import ChildBudget
from nbrl.agent.children.children import Children, OpenedChild
from nbrl.agent.episode import Episode, Task
from nbrl.agent.errors import PolicyError
from nbrl.agent.grammar import Grammar
from nbrl.agent.kernels.inline import InlineKernel
from nbrl.agent.kernels.prelude import prelude
from nbrl.agent.messages import Prompt
from nbrl.agent.policies.recorded import ScriptedPolicy
from nbrl.agent.policy import Generation, Policy
from nbrl.agent.settings import AgentSettings
from nbrl.agent.tokens.tokenizer import ChatTokenizer
from nbrl.agent.tools.base import Tool, Toolbox
from nbrl.agent.tools.exchange import handlers
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


Played = Sequence[Move] | str
"""How a child is played: moves of an agent, or what a model says."""


@dataclass(frozen=True)
class DemonstratedQuestion:
    """A question as a demonstrator gets it. `files` are texts in the folder, by name; `child` says how one's task is played."""

    id: str
    question: str
    ability: str
    files: Mapping[str, str] = field(default_factory=dict)
    child: Callable[[str], Played] | None = None


class PlayedTasks:
    """A policy that plays the question by its moves, and the tasks of its children as the question says."""

    def __init__(self, asked: DemonstratedQuestion, moves: Sequence[Move], stage: DemonstrationAgent) -> None:
        self._asked, self._stage = asked, stage
        self._scripts = {asked.question: self._script(moves)}

    async def generate(self, prompt: Prompt, max_tokens: int, seed: int) -> Generation:
        task = prompt.messages[1].body
        if task not in self._scripts:
            if self._asked.child is None:
                raise PolicyError(f"nothing shows how a child does {task[:100]!r}")
            self._scripts[task] = self._script(self._asked.child(task))
        return await self._scripts[task].generate(prompt, max_tokens, seed)

    def _script(self, played: Played) -> ScriptedPolicy:
        texts = [played] if isinstance(played, str) else [move.text(self._stage.agent.grammar) for move in played]
        return ScriptedPolicy(texts, self._stage.tokenizer)


async def play(asked: DemonstratedQuestion, moves: Sequence[Move], stage: DemonstrationAgent) -> Trajectory:
    """Play moves that were chosen before."""
    return await act(asked, PlayedTasks(asked, moves, stage), stage)


async def act(asked: DemonstratedQuestion, policy: Policy, stage: DemonstrationAgent) -> Trajectory:
    """Play a policy that writes trusted code: its cells, and those of its children, run in this process."""
    stage.check()
    task = Task(asked.id, asked.id, 0, asked.question, asked.ability, 0, instruction=stage.instruction)
    children = None
    if stage.agent.children is not None:

        def opens(nested: Children | None, depth: int) -> AbstractAsyncContextManager[OpenedChild]:
            folder = TextFiles()
            kernel, toolbox = _kernel(stage.tools, nested, folder)
            return nullcontext(OpenedChild(kernel, toolbox, folder))

        limits = stage.agent.children.model_copy(update={"credit": "parent"})  # what children show is learnt
        settings = stage.agent.model_copy(update={"children": limits})
        children = Children(task, policy, stage.tokenizer, settings, opens, ChildBudget(limits))
    kernel, toolbox = _kernel(stage.tools, children, TextFiles(asked.files))
    return await Episode(
        task, policy, kernel, toolbox, stage.tokenizer, stage.agent, session=stage.session, children=children
    ).run()


class TextFiles:
    """The folder of a demonstration: an nbrl.agent.children.children.Files whose files are texts."""

    def __init__(self, texts: Mapping[str, str] | None = None) -> None:
        self.texts = dict(texts or {})

    def read(self, path: str) -> bytes:
        if path not in self.texts:
            raise ValueError(f"there is no file {path!r}")
        return self.texts[path].encode()

    def put(self, path: str, data: bytes) -> None:
        if path in self.texts:
            raise ValueError(f"there is a file {path!r} already")
        self.texts[path] = data.decode("utf-8", "replace")


def _kernel(tools: Sequence[Tool], children: Children | None, folder: TextFiles) -> tuple[InlineKernel, Toolbox]:
    """Return a kernel in this process, and the toolbox that answers it."""
    if children is not None:
        children.files = folder
    toolbox = Toolbox([*tools, *(() if children is None else children.tools)])
    answers = handlers(toolbox, str if children is None else children.budget.refusal)

    async def call(name: str, arguments: dict[str, Any]) -> Any:
        return await answers[name](arguments)

    return InlineKernel(prelude(toolbox.tools.values()), call, folder.texts), toolbox
