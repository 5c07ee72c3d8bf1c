"""The steps of a trajectory as its page shows them, with the children that their cells called."""

from collections.abc import Mapping, Sequence
from typing import Any

from nbrl.agent.context.notepad import notes
from nbrl.agent.trajectory import Step, Trajectory
from nbrl.flows.pages.text import TextBlock, block, python
from nbrl.flows.pages.tokens import ActionTokens


def steps_of(
    trajectory: Trajectory,
    steps: Sequence[Step],
    first: int,
    earned: Sequence[float],
    rewards: Mapping[str, Any],
    sampled: Mapping[int, ActionTokens],
) -> list[dict[str, Any]]:
    """Return what the template needs of the steps of a trajectory or of a child of it, of which the first has number `first`."""
    shown, before = [], Step().notepad
    for place, step in enumerate(steps):
        shown.append(
            {
                "step": step,
                "number": place + 1,
                "blocks": _blocks(step),
                "notes": block("notepad", "notes", changed) if (changed := _notes(step, before)) else None,
                "calls": [
                    block(call.name, "call" if call.ok else "error", f"{call.name}({call.arguments}) → {call.result}")
                    for call in step.tool_calls
                ],
                "action": sampled.get(first + place, ActionTokens([])),
                "reward": earned[place] if place < len(earned) else None,
                "children": [
                    _child(trajectory, number, its_first, rewards, sampled)
                    for number, its_first in trajectory.called_by(first + place)
                ],
            }
        )
        before = step.notepad
    return shown


def _child(
    trajectory: Trajectory, number: int, first: int, rewards: Mapping[str, Any], sampled: Mapping[int, ActionTokens]
) -> dict[str, Any]:
    child, paid = trajectory.children[number], rewards.get("children") or []
    earned = paid[number]["step_rewards"] if number < len(paid) else []
    return {
        "child": child,
        "task": block("task", "question", child.task),
        "answer": block("answer", "question", child.answer if child.answer is not None else "(none)"),
        "steps": steps_of(trajectory, child.steps, first, earned, rewards, sampled),
    }


def _notes(step: Step, before: str) -> str:
    """Return the notepad after a step; empty if it is as before."""
    return notes(step.notepad) if step.notepad != before else ""


def _blocks(step: Step) -> list[TextBlock]:
    """Return thought, code and output of a step, as far as it has them."""
    blocks = [block("request", "output", step.observation)] if step.kind == "reply" else []
    if step.think:
        blocks.append(block("thought", "thought", step.think))
    if step.malformed:
        blocks.append(block("malformed", "error", step.malformed))
    elif step.kind == "summary":
        blocks.append(block("summary", "thought", step.observation))
    elif step.kind == "reply":
        blocks.append(block("reply", "question", step.code))
    elif step.code or step.observation:
        failed = step.cell_status in ("error", "timeout", "dead")
        blocks.append(block("code", "code", step.code, python))
        blocks.append(
            block(step.cell_status if failed else "output", "error" if failed else "output", step.observation or "(no output)")
        )
    return blocks
