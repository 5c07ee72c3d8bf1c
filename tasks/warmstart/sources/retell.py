"""A recorded trajectory in the tokens of another model, and in the wording of another agent."""

import json
import re
from collections import deque
from collections.abc import Sequence

from nbrl.agent.episode import Episode, Task
from nbrl.agent.grammar import Action
from nbrl.agent.kernel import CellResult
from nbrl.agent.notebook.recording import changed
from nbrl.agent.policies.recorded import RecordedPolicy
from nbrl.agent.tools.base import Toolbox, describe
from nbrl.agent.trajectory import Status, Step, Trajectory
from nbrl.tasks.warmstart.demonstrators.play import Stage
from nbrl.tasks.warmstart.sources.source import Found

CHANGES = re.compile(r"\bcontext\s*\.\s*(drop|summarise|pin|unpin|recall)\b")


class RecordedKernel:
    """Gives the recorded outcome of each cell and runs nothing."""

    def __init__(self, recorded: Trajectory) -> None:
        self._cells = deque(step for step in recorded.steps if step.kind == "cell" and not step.malformed)
        self._answer = recorded.answer if recorded.status is Status.ANSWERED else None

    async def execute(self, code: str, timeout: float, told: str = "") -> CellResult:
        step = self._cells.popleft()
        state = {"answer": None if self._cells else self._answer, "notepad": json.loads(step.notepad)}
        return CellResult("ok" if step.cell_status == "none" else step.cell_status, step.outputs, state)


async def retold(recorded: Sequence[Trajectory], stage: Stage, sampled_here: bool) -> Found:
    """The trajectories as this agent would meet them, told again action by action with the recorded outputs.

    Those that were `sampled_here`, by a run of nbrl, keep the ids that were sampled where the agent is the same. Left out is what
    this agent would not have met so: what is too long for it, ends otherwise, or reads otherwise in its grammar; and what
    changed its own context, for how is not recorded.
    """
    told: list[Trajectory] = []
    for each in recorded:
        stage.check()
        if sampled_here and _suits(each, stage):
            told.append(each)
        elif (again := await _again(each, stage)) is not None:
            told.append(again)
    return Found(told, len(recorded) - len(told))


def _suits(recorded: Trajectory, stage: Stage) -> bool:
    """Whether this very agent could have made it: the same prompt, limits, grammar and generation prompt."""
    system = stage.agent.render_system_prompt(describe(stage.tools), stage.instruction)
    opening = stage.tokenizer.message("system", system.text, tags=system.tags)
    cells = [step for step in recorded.steps if step.kind == "cell"]
    if not recorded.nodes or recorded.nodes[0].token_ids != opening or len(cells) > stage.agent.max_steps:
        return False
    ends = stage.tokenizer.generation_prompt()
    for place, node in enumerate(recorded.nodes):
        if node.kind == "sampled":
            prompt = recorded.path(node.parent)
            if prompt[-len(ends) :] != ends or len(recorded.path(place)) > stage.agent.context_tokens:
                return False
            if not _reads(recorded.steps[node.step], node.token_ids, stage):
                return False
    return True


def _reads(step: Step, ids: list[int], stage: Stage) -> bool:
    """Whether the agent reads an action's ids as the step says."""
    if step.kind == "summary":
        return len(ids) <= stage.agent.summary_tokens
    found = stage.agent.grammar.parse(stage.tokenizer.decode(ids))
    same = found == Action(step.think, step.code) if not step.malformed else True
    return len(ids) <= stage.agent.action_tokens and same


async def _again(recorded: Trajectory, stage: Stage) -> Trajectory | None:
    """None if it cannot be told again as it was."""
    if recorded.status is Status.FAILED or any(CHANGES.search(step.code) for step in recorded.steps):
        return None
    task = Task(
        recorded.id, recorded.group, recorded.sample, recorded.question, recorded.ability, 0, instruction=stage.instruction
    )
    policy = RecordedPolicy(recorded.steps, stage.agent, stage.tokenizer)
    try:
        episode = Episode(task, policy, RecordedKernel(recorded), Toolbox(stage.tools), stage.tokenizer, stage.agent)
        told = await episode.run()
    except (ValueError, RecursionError, IndexError, TypeError):  # of files that others wrote
        return None
    alike = (told.status, told.answer) == (recorded.status, recorded.answer) and not changed(recorded, told)
    kinds = [step.kind for step in told.steps] == [step.kind for step in recorded.steps]
    short = all(len(node.token_ids) <= stage.agent.action_tokens for node in told.sampled())
    return told if alike and kinds and short and told.sampled() else None
