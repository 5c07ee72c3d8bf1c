"""A recorded trajectory in the tokens of another model, and in the wording of another agent."""

import json
from collections import deque
from collections.abc import Sequence

from nbrl.agent.episode import Episode, Task
from nbrl.agent.kernel import CellResult
from nbrl.agent.policies.recorded import RecordedPolicy
from nbrl.agent.tools.base import Toolbox, describe
from nbrl.agent.trajectory import Status, Trajectory
from nbrl.tasks.warmstart.demonstrators.play import Stage
from nbrl.tasks.warmstart.sources.source import Found


class RecordedKernel:
    """Gives the recorded outcome of each cell and runs nothing."""

    def __init__(self, recorded: Trajectory) -> None:
        self._cells = deque(step for step in recorded.steps if step.kind == "cell" and not step.malformed)
        self._answer = recorded.answer if recorded.status is Status.ANSWERED else None

    async def execute(self, code: str, timeout: float, told: str = "") -> CellResult:
        step = self._cells.popleft()
        state = {"answer": None if self._cells else self._answer, "notepad": json.loads(step.notepad)}
        return CellResult("ok" if step.cell_status == "none" else step.cell_status, step.outputs, state)


async def retold(recorded: Sequence[Trajectory], stage: Stage) -> Found:
    """The trajectories as this agent would meet them.

    One whose token ids begin with this agent's own system prompt is taken with the ids that were sampled; another is told again,
    action by action, with the recorded outputs. Left out is what was not answered when told again, such as one that is too long
    for this agent, and what asked for changes of its context, which are not recorded.
    """
    system = stage.agent.render_system_prompt(describe(stage.tools), stage.instruction)
    opening = stage.tokenizer.message("system", system.text, tags=system.tags)
    told = [each if _same(each, opening) else await _again(each, stage) for each in recorded]
    usable = [each for each in told if each.sampled()]
    return Found(usable, len(told) - len(usable))


def _same(recorded: Trajectory, opening: list[int]) -> bool:
    return bool(recorded.nodes) and recorded.nodes[0].token_ids == opening


async def _again(recorded: Trajectory, stage: Stage) -> Trajectory:
    task = Task(
        recorded.id, recorded.group, recorded.sample, recorded.question, recorded.ability, 0, instruction=stage.instruction
    )
    policy = RecordedPolicy(recorded.steps, stage.agent, stage.tokenizer)
    episode = Episode(task, policy, RecordedKernel(recorded), Toolbox(stage.tools), stage.tokenizer, stage.agent)
    told = await episode.run()
    alike = told.status is recorded.status and told.answer == recorded.answer
    return told if alike else task.ended(Status.FAILED, "it cannot be told again")
